"""GPUs that are metered and split together have the energies that each has alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from whorl.analysis.energy.attribute import METERED, PIECES, Attribution
from whorl.analysis.energy.claims import claims_of
from whorl.analysis.energy.meter import Meters, meters_of_readings
from whorl.analysis.energy.problems import PROBLEMS
from whorl.analysis.energy.series import Note, Problem, Readings
from whorl.tests.analysis.energy.stored import NOON, S
from whorl.tests.sizes import count

MODELS = [None, "NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "Tesla K80"]
COLUMNS = ("power_w", "instant_w", "counter_j", "utilization", "window_s", "limit_w", "spread_w", "every_s")
Columns = dict[str, Any]


def odd_gpu(rng: np.random.Generator) -> Columns:
    """Readings with gaps, missing values, two readings of power, counters that are reset or stand still."""
    every = rng.choice([0.1, 0.5, 1, 5, 60])
    times = np.arange(int(rng.choice([1, 2, 5, 40, 70, 200, 500]))) * every + rng.uniform(
        0, every * rng.choice([0, 0.3])
    )
    gap = rng.uniform(0, times[-1] + 1)
    times = times[(times < gap) | (times > gap + rng.choice([0, 30 * every]))]
    times = times if len(times) else np.zeros(1)
    n = len(times)
    level = rng.uniform(60, 300, 8)[np.minimum((times / (times[-1] + 1) * 8).astype(int), 7)]
    quiet = rng.random(8)[np.minimum((times / (times[-1] + 1) * 8).astype(int), 7)] < 0.4
    watts = np.where(quiet, 50.0, level) + rng.normal(0, 2, n)
    counter = np.concatenate([[0.0], np.cumsum(np.diff(times) * (watts[1:] + watts[:-1]) / 2)])
    at = int(rng.integers(0, n))
    counter[at:] -= rng.choice([0, 0, counter[at], 500.0, -1e7])
    counter[at : at + 30] = counter[at] if rng.random() < 0.3 else counter[at : at + 30]
    instant = watts + rng.choice([0.0, 5.0])
    for values in (watts, counter, instant):
        values[rng.random(n) < rng.choice([0, 0, 0.2, 1.0])] = np.nan
    watts[at : at + 40] = rng.choice([0.0, 123.0]) if rng.random() < 0.2 else watts[at : at + 40]
    return {
        "ts_ns": (NOON + np.round(times * S)).astype(np.int64), "stuck": np.full(n, rng.random() < 0.05),
        "power_w": watts, "instant_w": np.where(rng.random() < 0.5, np.nan, instant), "counter_j": counter,
        "utilization": np.where(quiet, 0.0, rng.choice([1.0, 0.4, np.nan], n)),
        "window_s": np.full(n, rng.choice([np.nan, 0.025, 1.0])), "limit_w": np.full(n, rng.choice([np.nan, 300.0])),
        "spread_w": np.full(n, rng.choice([np.nan, np.nan, 20.0])), "every_s": np.ones(n),
    }  # fmt: skip


def metered(gpus: list[Columns], first: int = 0) -> Meters:
    sizes = [len(gpu["ts_ns"]) for gpu in gpus]
    columns: Columns = {name: np.concatenate([gpu[name] for gpu in gpus]) for name in ("ts_ns", "stuck", *COLUMNS)}
    return meters_of_readings(
        [("c", f"GPU-{first + number}") for number in range(len(gpus))],
        Readings(**columns, begins=np.concatenate([[0], np.cumsum(sizes)])),
        [None if (first + number) % 3 else 250.0 for number in range(len(gpus))],
        [MODELS[(first + number) % len(MODELS)] for number in range(len(gpus))],
        [[Note(Problem.CLOCK_STEP, NOON + 5 * S, NOON + 15 * S, seconds=-10.0)] * ((first + number) % 5 == 0)
         for number in range(len(gpus))],
    )  # fmt: skip


def jobs_on(rng: np.random.Generator, gpus: int) -> pl.DataFrame:
    rows = [
        (
            "c",
            f"{gpu}-{job}",
            str(job),
            f"n{gpu}",
            f"GPU-{gpu}",
            [1.0, 0.5, None][int(rng.integers(3))],
            1,
            began,
            began + lasts,
            NOON,
        )
        for gpu in range(gpus)
        for job in range(int(rng.integers(0, 5)))
        for began, lasts in [(NOON + int(rng.uniform(-20, 400) * S), int(rng.choice([0, 1, 50, 300]) * S))]
    ]
    texts, numbers = ("cluster", "allocation", "job_id", "node", "gpu"), ("node_gpus", "began", "ended", "recorded")
    kinds = {**dict.fromkeys(texts, pl.String), "share": pl.Float64, **dict.fromkeys(numbers, pl.Int64)}
    table = pl.DataFrame(rows, schema=kinds, orient="row")
    return table.with_columns(pl.col("began", "ended", "recorded").cast(pl.Datetime("ns")), pl.lit(None).alias("busy"))


def close(one: Any, two: Any) -> None:
    np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9 * (1 + np.abs(np.nan_to_num(two)).max(initial=0)))


NO_BOARDS = pl.DataFrame(
    schema={
        **dict.fromkeys(("cluster", "gpu", "node", "model", "parent", "mig_profile"), pl.String), "limit_w": pl.Float64
    }
)  # fmt: skip


def split(meters: Meters, jobs: pl.DataFrame, cuts: Any) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Pieces, what was metered, and problems."""
    made = Attribution(claims_of(jobs, NO_BOARDS), cuts=cuts.tolist())
    pieces = pl.concat([pl.DataFrame(schema=PIECES), *made.pieces([made.split([meters])])])
    return pieces, made.metered, made.problems


@pytest.mark.parametrize("seed", range(count(12, short=2)))
def test_each_of_many_gpus_is_metered_and_split_as_if_it_were_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gpus = [odd_gpu(rng) for _ in range(9)]
    together = metered(gpus)
    jobs = jobs_on(rng, len(gpus))
    cuts = np.sort(NOON + (rng.uniform(0, 300, 3) * S).astype(np.int64))
    whole = split(together, jobs, cuts)
    for number, gpu in enumerate(gpus):
        alone = metered([gpu], number)
        assert [(note.problem, note.began_ns, note.ended_ns, note.n) for note in alone.notes[0]] == [
            (note.problem, note.began_ns, note.ended_ns, note.n) for note in together.notes[number]
        ]
        ends = np.sort(NOON + (rng.uniform(-5, 600, (2, 20)) * S).astype(np.int64), axis=0)
        one = alone.over(np.zeros(20, np.int64), *ends)
        two = together.over(np.full(20, number), *ends)
        for name, values in vars(one).items():
            if name == "reason":
                assert values.tolist() == two.reason.tolist()
            else:
                close(getattr(two, name), values)
        of_gpu = pl.col("gpu") == f"GPU-{number}"
        for every, own, columns in zip(whole, split(alone, jobs.filter(of_gpu), cuts), (PIECES, METERED, PROBLEMS),
                                       strict=True):  # fmt: skip
            order = ["began", "kind", "allocation", "ended"] if columns is PIECES else list(columns)[:6]
            every, own = every.filter(of_gpu).sort(order), own.sort(order)
            for name, kind in columns.items():
                if kind == pl.Float64:
                    np.testing.assert_array_equal(every[name].is_null(), own[name].is_null())
                    close(every[name].fill_null(0).to_numpy(), own[name].fill_null(0).to_numpy())
                else:
                    assert every[name].to_list() == own[name].to_list()
