"""Whatever jobs, gaps and resets: the pieces of a GPU add up to what was metered, and cuts change no sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from whorl.analysis.energy.attribute import (
    ABOVE,
    BELOW,
    ENERGY,
    IDLE_HIGH,
    IDLE_LOW,
    JOB,
    MEASURED,
    SENSED,
    VARIANCE,
    Shreds,
    split,
)
from whorl.analysis.energy.claims import Claims, Fleet, claims
from whorl.analysis.energy.meter import Meter
from whorl.analysis.energy.series import Readings
from whorl.tests.analysis.energy.stored import NOON, S, at, build
from whorl.tests.sizes import count

LASTS = 1800
PARENT, INSTANCES = "GPU-a", {"MIG-1": "1g.10gb", "MIG-2": "2g.20gb", "MIG-3": "3g.40gb", "MIG-4": "odd"}
NONE = np.array([], np.int64)


@dataclass(frozen=True)
class Case:
    meter: Meter
    claims: Claims
    cuts: np.ndarray[tuple[int], np.dtype[np.int64]]
    unknown: tuple[Any, Any] | None
    since_ns: int | None
    until_ns: int | None

    def split(self, cuts: Any = None) -> Shreds:
        rows = self.claims.of_gpu.get(("c", PARENT), range(0))
        cuts = self.cuts if cuts is None else cuts
        found, _ = split(
            self.meter.among, self.claims, [rows], cuts=cuts, since_ns=self.since_ns, until_ns=self.until_ns,
            unknown=None if self.unknown is None else {0: self.unknown},
        )  # fmt: skip
        return found

    def metered(self) -> Any:
        first = max(self.meter.first_ns, self.since_ns or 0)
        last = min(self.meter.last_ns, self.until_ns or 2**62)
        return self.meter.over(np.array([first]), np.array([max(first, last)]))


FLEET = Fleet(
    {("c", gpu): "n1" for gpu in (PARENT, *INSTANCES)},
    {("c", PARENT): 300.0},
    {("c", gpu): PARENT for gpu in INSTANCES},
    {("c", "MIG-1"): 1 / 7, ("c", "MIG-2"): 2 / 7, ("c", "MIG-3"): 3 / 7},
)


def meter_of(seed: int, gaps: int, resets: int, *, idle: bool, counts: bool) -> Meter:
    rng = np.random.default_rng(seed)
    seconds = np.arange(0, LASTS, float(rng.choice([1, 5, 20])))
    for _ in range(gaps):
        start = rng.uniform(0, LASTS)
        seconds = seconds[(seconds < start) | (seconds > start + rng.exponential(200))]
    level = rng.uniform(60, 300, 40)
    watts = level[np.minimum((seconds / LASTS * 40).astype(int), 39)] + rng.normal(0, 2, len(seconds))
    quiet = np.zeros(len(seconds), bool)
    if idle:
        quiet = rng.random(40)[np.minimum((seconds / LASTS * 40).astype(int), 39)] < 0.4
        watts[quiet] = 50
    counter = (
        np.concatenate([[0.0], np.cumsum(np.diff(seconds) * (watts[1:] + watts[:-1]) / 2)]) if len(seconds) else watts
    )
    for _ in range(resets):
        back = seconds > rng.uniform(0, LASTS)
        if back.any():
            counter = np.where(back, counter - counter[back][0], counter)
    unknown = np.full(len(seconds), np.nan)
    readings = Readings(
        ts_ns=(NOON + np.round(seconds * S)).astype(np.int64),
        stuck=np.zeros(len(seconds), bool),
        power_w=watts,
        instant_w=unknown,
        counter_j=counter if counts else unknown,
        utilization=np.where(quiet, 0.0, 1.0),
        window_s=unknown,
        limit_w=np.full(len(seconds), 300.0),
    )
    return build("c", PARENT, readings)


def claims_of(jobs: list[tuple[str, float, float | None, float | None]]) -> Claims:
    """(GPU or instance, begin, length or None where it runs, share) of each."""
    texts, numbers = ("cluster", "allocation", "job_id", "node", "gpu"), ("node_gpus", "began", "ended", "recorded")
    kinds = {**dict.fromkeys(texts, pl.String), "share": pl.Float64, **dict.fromkeys(numbers, pl.Int64)}
    rows = [
        (
            "c",
            f"{number}.0",
            str(number),
            "n1",
            on,
            share,
            1,
            at(began),
            None if lasts is None else at(began + lasts),
            NOON,
        )
        for number, (on, began, lasts, share) in enumerate(jobs)
    ]
    table = pl.DataFrame(rows, schema=kinds, orient="row").with_columns(pl.lit(None).alias("busy"))
    return claims(table.with_columns(pl.col("began", "ended", "recorded").cast(pl.Datetime("ns"))), FLEET)


seconds = st.integers(-200, LASTS + 200).map(float) | st.floats(0, LASTS)
jobs = st.lists(
    st.tuples(
        st.sampled_from([PARENT, PARENT, *INSTANCES]),
        seconds,
        st.none() | st.just(0.0) | st.floats(-50, 900),
        st.sampled_from([1.0, 1.0, 0.5, 0.25, 1 / 3, 0.0, None]),
    ),
    max_size=12,
)
times = st.lists(seconds.map(at), max_size=4).map(lambda found: np.unique(np.array(found, np.int64)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    meter = meter_of(
        draw(st.integers(0, 50)), draw(st.integers(0, 3)), draw(st.integers(0, 2)),
        idle=draw(st.booleans()), counts=draw(st.booleans()),
    )  # fmt: skip
    among = draw(st.none() | st.tuples(times, times))
    unknown = None
    if among is not None:
        n = min(map(len, among))
        unknown = np.sort(np.minimum(among[0][:n], among[1][:n])), np.sort(np.maximum(among[0][:n], among[1][:n]))
    since, until = sorted(draw(st.tuples(seconds.map(at), seconds.map(at))))
    window = draw(st.booleans()) and since < meter.last_ns and until > meter.first_ns
    of_jobs = claims_of(draw(jobs))
    return Case(meter, of_jobs, draw(times), unknown, since if window else None, until if window else None)


def total(shreds: Shreds, row: int) -> float:
    return float(shreds.figures[row].sum())


@settings(max_examples=count(25, short=6))
@given(cases())
def test_the_pieces_add_up_to_what_was_metered(case: Case) -> None:
    shreds, metered = case.split(), case.metered()
    energy = metered.energy_j[0]
    assert abs(total(shreds, ENERGY) - energy) <= 1e-9 * max(energy, 1)
    assert abs(total(shreds, MEASURED) - metered.measured_s[0]) <= 1e-9 * LASTS
    assert abs(total(shreds, SENSED) - metered.measured_j[0]) <= 1e-9 * max(energy, 1)
    assert (shreds.figures[IDLE_LOW] <= shreds.figures[IDLE_HIGH] + 1e-9 * max(energy, 1)).all()
    for row in (ENERGY, BELOW, ABOVE, VARIANCE, MEASURED, IDLE_LOW):
        assert (shreds.figures[row] >= -1e-9 * max(energy, 1)).all()


@settings(max_examples=count(25, short=6))
@given(cases())
def test_at_every_time_the_shares_of_a_gpu_are_one(case: Case) -> None:
    shreds = case.split(np.unique(np.append(case.cuts, [case.meter.first_ns, case.meter.last_ns])))
    edges = np.unique(np.concatenate([shreds.began, shreds.ended]))
    middle = (edges[:-1] + edges[1:]) // 2
    there = (shreds.began[:, None] <= middle) & (shreds.ended[:, None] > middle)
    held = (there * shreds.share[:, None]).sum(axis=0)
    metered = (middle >= max(case.meter.first_ns, case.since_ns or 0)) & (
        middle < min(case.meter.last_ns, case.until_ns or 2**62)
    )
    # A piece of a job whose share changes as others come and go has its mean share.
    steady = ~(there & (shreds.kind == JOB)[:, None]).any(axis=0)
    np.testing.assert_allclose(held[metered & steady], 1)
    lasted = (shreds.ended - shreds.began) / 1e9
    inside = (shreds.share * lasted).sum() - _outside(case, shreds)
    span = max(min(case.meter.last_ns, case.until_ns or 2**62) - max(case.meter.first_ns, case.since_ns or 0), 0) / 1e9
    assert inside <= span + 1e-6


def _outside(case: Case, shreds: Shreds) -> float:
    """Share x seconds of pieces before the first reading and after the last."""
    first, last = case.meter.first_ns, case.meter.last_ns
    before = np.clip(np.minimum(shreds.ended, first) - shreds.began, 0, None)
    after = np.clip(shreds.ended - np.maximum(shreds.began, last), 0, None)
    return float((shreds.share * (before + after)).sum() / 1e9)


@settings(max_examples=count(25, short=6))
@given(cases())
def test_cuts_change_no_sum_and_every_piece_ends_at_them(case: Case) -> None:
    whole, cut = case.split(NONE), case.split()
    for time in case.cuts:
        assert not ((cut.began < time) & (cut.ended > time)).any()
    scale = max(total(whole, ENERGY), 1)
    assert abs(total(whole, ENERGY) - total(cut, ENERGY)) <= 1e-9 * scale
    idle = case.meter.idle_w
    for claim in np.unique(whole.claim[whole.claim >= 0]):
        one, parts = (found.figures[ENERGY, found.claim == claim].sum() for found in (whole, cut))
        alone = (whole.share[whole.claim == claim] == 1).all()
        if alone or idle is None:  # below its idle power, a shared GPU's split depends on the time that is looked at
            assert abs(one - parts) <= 1e-9 * scale


@settings(max_examples=count(25, short=6))
@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_the_jobs_changes_nothing(case: Case, random: Any) -> None:
    frame = case.claims.frame.with_columns(
        pl.Series("began", case.claims.began), pl.Series("ended", case.claims.ended), pl.Series("s", case.claims.share)
    )
    order = list(range(frame.height))
    random.shuffle(order)
    shuffled = Claims(
        case.claims.frame[order], case.claims.began[order], case.claims.ended[order], case.claims.recorded[order],
        case.claims.share[order], case.claims.busy[order], case.claims.of_gpu, case.claims.of_node, NONE,
    )  # fmt: skip
    one = case.split()
    two, _ = split(
        case.meter.among, shuffled, [range(frame.height)], cuts=case.cuts, since_ns=case.since_ns,
        until_ns=case.until_ns, unknown=None if case.unknown is None else {0: case.unknown},
    )  # fmt: skip
    names = {row: case.claims.frame["allocation"][row] for row in range(frame.height)}
    by_name = [
        sorted(
            (name, float(found.figures[ENERGY, (found.claim >= 0)][at]))
            for at, name in enumerate(rows[int(claim)] for claim in found.claim[found.claim >= 0])
        )
        for found, rows in ((one, names), (two, dict(enumerate(shuffled.frame["allocation"].to_list()))))
    ]
    assert [name for name, _ in by_name[0]] == [name for name, _ in by_name[1]]
    one_j, two_j = (np.array([value for _, value in found]) for found in by_name)
    np.testing.assert_allclose(one_j, two_j, rtol=1e-9, atol=1e-6)
