"""`variability` as a whole: its shape, what it does with little or odd data, and what must not change it."""

from __future__ import annotations

import datetime as dt
import json
import math
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whorl.analysis import Variability, across, variability
from whorl.analysis.spread.repeats import Belongs, leading
from whorl.analysis.spread.variability import Across
from whorl.errors import InputError
from whorl.tests.analysis.correlations import spearman
from whorl.tests.analysis.longhorn import needs_longhorn, runs

KEYS = {
    *("cluster", "workload", "level", "n", "gpus", "unit", "median", "fence_pct", "whisk_pct", "range_pct"),
    *("p95p5_pct", "cov_pct", "rcov_pct", "worst_over_median", "slow", "fast", "icc", "icc_job", "correlation"),
    *("modes", "imported", "modes_test", "split_half", "shares", "interval", "seed", "replicates", "finding"),
    *("reasons", "left_out", "belongs"),
}
PERCENTAGES = ("fence_pct", "whisk_pct", "range_pct", "p95p5_pct", "rcov_pct", "worst_over_median")


def frame(gpu: list[str], value: list[float], **columns: Any) -> pl.DataFrame:
    return pl.DataFrame({"gpu": gpu, "value": value, **columns}).with_columns(
        cluster=pl.lit("c"), workload=pl.lit("w"), unit=pl.lit("ms")
    )


def fleet(seed: int = 0, gpus: int = 30, runs: int = 6) -> pl.DataFrame:
    """A fleet with every column, holes in some."""
    rng = np.random.default_rng(seed)
    gpu = np.repeat(np.arange(gpus), runs)
    n = len(gpu)
    clock = np.rint(1350 - 20 * rng.normal(size=gpus)[gpu])
    began = [dt.datetime(2026, 1, 1) + dt.timedelta(minutes=int(m)) for m in rng.permutation(n)]  # noqa: DTZ001
    table = frame(
        [f"GPU-{g:03d}" for g in gpu],
        (2440 * 1350 / clock + rng.normal(0, 3, n)).tolist(),
        sm_clock_mhz=clock,
        power_w=rng.normal(297, 1, n),
        temperature_c=np.rint(rng.normal(66, 5, n)),
        job_id=[f"job{g // 3}-{i % runs}" for i, g in enumerate(gpu)],
        node=[f"n{g // 3}" for g in gpu],
        cabinet=[f"c{g // 9}" for g in gpu],
        began=began,
    )
    hole = pl.Series(rng.random(n) < 0.1)
    return table.with_columns(
        pl.when(~hole).then("power_w"), pl.when(~hole).then("node"), pl.when(~hole.reverse()).then("temperature_c")
    )


def finite(value: object) -> bool:
    """Whether JSON-ready data hold no NaN and no infinity."""
    if isinstance(value, dict):
        return all(finite(part) for part in value.values())
    if isinstance(value, list):
        return all(finite(part) for part in value)
    return not isinstance(value, float) or math.isfinite(value)


def test_the_order_of_the_rows_changes_nothing() -> None:
    table = fleet(3)
    expected = [row.as_dict() for row in variability(table, replicates=100)]
    for seed in range(3):
        shuffled = table.sample(fraction=1.0, shuffle=True, seed=seed)
        for a, b in zip(expected, variability(shuffled, replicates=100), strict=True):
            result = b.as_dict()
            for name in KEYS - {"correlation"}:
                assert result[name] == a[name], name
            for name, correlation in a["correlation"].items():
                assert result["correlation"][name] == pytest.approx(correlation, rel=1e-12)


def test_columns_that_are_missing_or_empty_say_so() -> None:
    table = frame(["a", "b", "c"] * 2, [1.0, 2.0, 3.0, 1.1, 2.1, 3.1], power_w=[None] * 6)
    row = variability(table, replicates=0)[0].as_dict()
    assert row["correlation"]["sm_clock"] == {
        **dict.fromkeys(("pearson", "spearman")), "n": 0, "reason": "no SM clock is known",
    }  # fmt: skip
    assert row["correlation"]["power"]["reason"] == "no power is known"
    assert row["icc_job"]["reason"] == "no run names its job"
    assert row["reasons"]["interval"] == "the bootstrap was switched off"
    two = variability(table.with_columns(temperature_c=pl.Series([40.0, 41.0, *[None] * 4])), replicates=0)[0]
    assert two.correlation["temperature"].reason == "fewer than 3 rows have both values"
    assert two.correlation["temperature"].n == 2


def test_rows_without_a_gpu_or_a_value_are_left_out_and_counted() -> None:
    table = frame(["a", "b", None, "a", "b", "a"], [1.0, 2.0, 3.0, None, math.nan, math.inf])  # type: ignore[list-item]
    run, _ = variability(table, replicates=0)
    assert (run.n, run.left_out) == (2, 4)
    assert variability(table.filter(pl.col("gpu").is_null()), replicates=0) == []
    assert variability(table.clear(), replicates=0) == []


def test_jobs() -> None:
    rng = np.random.default_rng(1)
    job = np.repeat(np.arange(60), 4)
    gpu = [f"g{4 * (j % 10) + i % 4}" for i, j in enumerate(job)]
    values = 100 + rng.normal(0, 5, 60)[job] + rng.normal(0, 0.5, 240)
    row = variability(frame(gpu, values.tolist(), job_id=[f"j{j}" for j in job]), replicates=200)[0]
    assert (row.icc_job.value or 0) > 0.9
    assert row.icc_job.low is not None
    assert (row.icc_job.low or 1) < (row.icc_job.value or 0) < (row.icc_job.high or 0)
    assert row.icc_job.groups == 60
    assert row.belongs is Belongs.NONE
    alone = variability(frame(gpu, values.tolist(), job_id=gpu), replicates=0)[0].icc_job
    assert (alone.value, alone.reason) == (None, "no job holds several GPUs")


def test_the_widest_spread_that_belongs_to_the_gpus_leads() -> None:
    wide = ("resnet", 12.1, Belongs.NONE)
    narrow = ("chase", 2.0, Belongs.HIDDEN)
    spreads = [wide, ("sgemm", 9.3, Belongs.GPUS), narrow, ("bert", 30.0, Belongs.UNKNOWN), ("one", None, Belongs.GPUS)]
    assert leading(spreads) == ("sgemm", Belongs.GPUS)
    assert leading([wide, narrow]) == ("chase", Belongs.HIDDEN)
    assert leading([wide, ("pagerank", 0.5, Belongs.OUTLIERS), ("bert", 3.0, Belongs.UNKNOWN)]) == (
        "pagerank",
        "outliers",
    )
    assert leading([wide, ("other", 13.0, Belongs.ALIKE)]) == ("other", Belongs.ALIKE)
    assert leading([("one", None, Belongs.GPUS)]) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda f: f.drop("value", "unit"), "the runs have no column value, unit"),
        (lambda f: f.with_columns(cluster=pl.lit(None, pl.String)), "180 runs have no cluster"),
        (
            lambda f: f.with_columns(unit=pl.when(pl.col("gpu") == "GPU-001").then(pl.lit("s")).otherwise("unit")),
            "the values of w on c are in several units (ms, s): convert them to one unit first",
        ),
    ],
)
def test_bad_input_is_named(change: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        variability(change(fleet()), replicates=0)
    assert str(caught.value) == words


values = st.one_of(st.floats(allow_nan=True, allow_infinity=True, width=32), st.integers(0, 4).map(float), st.none())
row_strategy = st.tuples(
    st.sampled_from(["a", "b", "c", "d", None]), values, values, st.sampled_from(["j", "k", "l", None])
)


@pytest.mark.long
@settings(max_examples=50, deadline=None)
@given(st.lists(row_strategy, max_size=14))
def test_anything_gives_finite_rows_or_none(rows: list[tuple[Any, ...]]) -> None:
    table = pl.DataFrame(
        rows,
        schema={"gpu": pl.String, "value": pl.Float64, "sm_clock_mhz": pl.Float64, "job_id": pl.String},
        orient="row",
    ).with_columns(cluster=pl.lit("c"), workload=pl.lit("w"), unit=pl.lit("ms"), node="gpu")
    answer = variability(table, replicates=10)
    usable = [r for r in rows if r[0] is not None and r[1] is not None and math.isfinite(r[1])]
    assert len(answer) == (2 if usable else 0)
    for row in answer:
        assert finite(row.as_dict())
        assert row.left_out == len(rows) - len(usable)
        for name in PERCENTAGES:
            assert getattr(row, name) is not None or name in row.reasons


def _in_nodes(node_sd: float, nodes: int, per_node: int = 4) -> list[Variability]:
    """Five runs of the GPUs of these nodes, which differ by 2 % and by their nodes."""
    rng = np.random.default_rng(5)
    level = 100.0 + np.repeat(rng.normal(0.0, node_sd, nodes), per_node) + rng.normal(0.0, 2.0, nodes * per_node)
    gpu = np.repeat(np.arange(nodes * per_node), 5)
    values = level[gpu] + rng.normal(0.0, 1.0, len(gpu))
    table = frame([f"g{board}" for board in gpu], values.tolist(), node=[f"n{board // per_node}" for board in gpu])
    return variability(table, replicates=200)


def test_nodes_are_resampled_where_their_gpus_are_alike() -> None:
    apart, noisy = _in_nodes(0.0, 30)[0], _in_nodes(4.0, 30)[0]
    assert apart.reasons["interval"].startswith("from 120 GPUs that were resampled; none for whisk_pct (")
    assert noisy.reasons["interval"].startswith("from 30 nodes that were resampled, because GPUs of a node are alike")
    # 30 nodes say little about the outer twentieth of the GPUs, 120 GPUs say enough.
    assert (apart.interval["p95p5_pct"] is None, noisy.interval["p95p5_pct"] is None) == (False, True)
    assert "p95p5_pct (fewer than 50 nodes)" in noisy.reasons["interval"]
    low, high = noisy.interval["median"] or (0.0, 0.0)
    assert high - low > 2.0  # as 30 nodes that differ by 4 % know it; 120 GPUs as such would give 1.9


@needs_longhorn
def test_process_numbers_are_no_jobs() -> None:
    # resnet50's own job_id has one chance repeat among 1,403: a group of two must not pass for a sample of jobs.
    frame = runs("resnet50").with_columns(job_id=pl.int_range(pl.len()).clip(1).cast(pl.String))
    row = variability(frame, replicates=0)[0].icc_job
    assert row.value is None
    assert row.reason == "fewer than half of the runs share their job with another GPU"


def test_medians_of_many_gpus_with_runs_in_any_order_and_number() -> None:
    rng = np.random.default_rng(9)
    gpu = rng.permutation(np.repeat(np.arange(300), 1 + np.arange(300) % 4))
    value = 100 + rng.normal(0, 3, len(gpu))
    of_runs, of_gpus = variability(frame([f"GPU-{g:03d}" for g in gpu], value.tolist()), replicates=0)
    medians = np.array([np.median(value[gpu == g]) for g in range(300)])
    assert of_gpus.median == pytest.approx(np.median(medians))
    assert of_gpus.worst_over_median == pytest.approx(medians.max() / np.median(medians))
    within = sum(((value[gpu == g] - value[gpu == g].mean()) ** 2).sum() for g in range(300)) / (len(gpu) - 300)
    sizes = np.bincount(gpu)
    means = np.array([value[gpu == g].mean() for g in range(300)])
    between = (sizes * (means - value.mean()) ** 2).sum() / 299
    variance = max(0.0, (between - within) / ((len(gpu) - (sizes**2).sum() / len(gpu)) / 299))
    assert of_runs.icc.value == pytest.approx(variance / (variance + within))


# -- across ------------------------------------------------------------------------------------------------------------
# `across`: which GPUs meet, and what is said when they do not.


def runs_of_across(workload: str, medians: dict[str, float], cluster: str = "c", **columns: float) -> pl.DataFrame:
    rows = [(gpu, m + d) for gpu, m in medians.items() for d in (-1.0, 0.0, 1.0)]
    return pl.DataFrame(rows, schema=["gpu", "value"], orient="row").select(
        cluster=pl.lit(cluster), workload=pl.lit(workload), gpu="gpu", value="value", unit=pl.lit("ms"),
        **{name: pl.lit(value) for name, value in columns.items()},
    )  # fmt: skip


def identities(*rows: tuple[str, str | None, str | None]) -> pl.DataFrame:
    schema = {"gpu": pl.String, "uuid": pl.String, "place": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(cluster=pl.lit("c"))


def times(frame: pl.DataFrame, gpus: pl.DataFrame | None = None) -> Across:
    (row,) = [r for r in across(frame, identities=gpus) if (r.figure_a, r.figure_b) == ("time", "time")]
    return row


A = {f"U{i}": float(10 * (i * 7 % 11)) for i in range(8)}
B = {f"p{i}": float(10 * (i * 5 % 13)) for i in range(8)}


def test_a_place_meets_its_uuid() -> None:
    two_clusters = pl.concat([runs_of_across("a", A), runs_of_across("b", B)])
    assert (times(two_clusters).n, times(two_clusters).spearman) == (0, None)
    row = times(two_clusters, identities(*((f"U{i}", f"U{i}", f"p{i}") for i in range(8))))
    assert row.n == 8
    expected = spearman([A[f"U{i}"] for i in range(8)], [B[f"p{i}"] for i in range(8)])
    assert row.spearman == pytest.approx(expected)
    assert row.low is not None
    assert row.high is not None
    assert row.low < expected < row.high
    assert json.loads(json.dumps(row.as_dict())) == row.as_dict()


@pytest.mark.parametrize(
    ("extra", "unusable", "n"),
    [
        (("U9", "U9", "p0"), 1, 7),  # a place with two UUIDs
        (("U0", "U0", "p9"), 1, 7),  # a UUID with two places, of which only one is measured
        (("U0", "U0", "p1"), 2, 6),  # both
    ],
)
def test_an_ambiguous_link_is_not_used_and_counted(extra: tuple[str, str, str], unusable: int, n: int) -> None:
    board_rows = identities(*((f"U{i}", f"U{i}", f"p{i}") for i in range(8)), extra)
    row = times(pl.concat([runs_of_across("a", A), runs_of_across("b", B)]), board_rows)
    assert (row.n, row.ambiguous) == (n, unusable)


def test_a_third_name_leads_to_the_uuid_also_by_way_of_the_place() -> None:
    board_rows = identities(
        *((f"host-{i}", None, f"p{i}") for i in range(4)),
        *((f"host-{i}", f"U{i}", None) for i in range(4, 8)),
        *((f"U{i}", f"U{i}", f"p{i}") for i in range(4)),
    )
    hosts = {f"host-{i}": B[f"p{i}"] for i in range(8)}
    row = times(pl.concat([runs_of_across("a", A), runs_of_across("b", hosts)]), board_rows)
    assert row.n == 8
