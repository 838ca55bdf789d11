"""Whatever jobs, gaps and resets: the pieces of a GPU add up to what was metered, and cuts change no sum."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whorl.analysis.energy.attribute import PIECES, Attribution
from whorl.analysis.energy.claims import Claims, claims_of
from whorl.analysis.energy.meter import Meters
from whorl.analysis.energy.nodes import NodeMeter, measured_hosts
from whorl.analysis.energy.sensor import Readings, Times
from whorl.store.vocabulary import PowerMeter, PowerOf
from whorl.tests.analysis.energy.stored import NOON, Meter, S, at, build
from whorl.tests.sizes import count

LASTS = 1800
PARENT, INSTANCES = "GPU-a", {"MIG-1": "1g.10gb", "MIG-2": "2g.20gb", "MIG-3": "3g.40gb", "MIG-4": "odd"}
SUMS = ("energy_j", "sensed_j", "measured_s", "idle_j")
BOARDS = pl.DataFrame(
    [("c", PARENT, "n1", "A100", None, None, 300.0)]
    + [("c", name, "n1", "A100", PARENT, profile, 300.0) for name, profile in INSTANCES.items()],
    schema=["cluster", "gpu", "node", "model", "parent", "mig_profile", "limit_w"], orient="row",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    meter: Meter = field(repr=False)
    jobs: pl.DataFrame
    cuts: Times
    since_ns: int | None
    until_ns: int | None

    def pieces(self, cuts: Times | None = None, meters: list[Meters] | None = None) -> pl.DataFrame:
        """What the GPU has, but for times before its first reading and after its last."""
        times = {"since_ns": self.since_ns, "until_ns": self.until_ns}
        split = Attribution(self.claims, cuts=(self.cuts if cuts is None else cuts).tolist(), **times)
        pieces_of_parts = pl.concat(
            [pl.DataFrame(schema=PIECES), *split.pieces([split.split(meters or [self.meter.among])])]
        )
        first, last = (end // 1000 for end in self.ends)
        return pieces_of_parts.filter(
            pl.col("gpu") == PARENT, pl.col("began").dt.epoch("us") >= first, pl.col("ended").dt.epoch("us") <= last + 1
        )

    @property
    def claims(self) -> Claims:
        return claims_of(self.jobs, BOARDS)

    @property
    def ends(self) -> tuple[int, int]:
        first = max(self.meter.first_ns, self.since_ns or 0)
        return first, max(first, min(self.meter.last_ns, self.until_ns or 2**62))


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


def jobs_of(jobs: list[tuple[str | None, float, float | None, float | None]]) -> pl.DataFrame:
    """(GPU, instance or None where only the node is known; begin, length or None where it runs, share) of each."""
    texts, numbers = ("cluster", "allocation", "job_id", "node", "gpu"), ("node_gpus", "began", "ended", "recorded")
    kinds = {**dict.fromkeys(texts, pl.String), "share": pl.Float64, **dict.fromkeys(numbers, pl.Int64)}
    rows = [
        ("c", f"{number}.0", str(number), "n1", on, share, 1, at(began),
         None if lasts is None else at(began + lasts), NOON)
        for number, (on, began, lasts, share) in enumerate(jobs)
    ]  # fmt: skip
    table = pl.DataFrame(rows, schema=kinds, orient="row").with_columns(pl.lit(None).alias("busy"))
    return table.with_columns(pl.col("began", "ended", "recorded").cast(pl.Datetime("ns")))


seconds = st.integers(-200, LASTS + 200).map(float) | st.floats(0, LASTS).map(lambda value: round(value, 3))
jobs = st.lists(
    st.tuples(
        st.sampled_from([PARENT, PARENT, *INSTANCES, None]),
        seconds,
        st.none() | st.just(0.0) | st.integers(-50, 900).map(float),
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
    since, until = sorted(draw(st.tuples(seconds.map(at), seconds.map(at))))
    window = draw(st.booleans()) and since < meter.last_ns and until > meter.first_ns
    return Case(meter, jobs_of(draw(jobs)), draw(times), since if window else None, until if window else None)


def sums(pieces: pl.DataFrame) -> dict[str, float]:
    return pieces.select(pl.col(SUMS).sum()).row(0, named=True)


@settings(max_examples=count(25, short=6))
@given(cases())
def test_the_pieces_add_up_to_what_was_metered(case: Case) -> None:
    pieces, (first, last) = case.pieces(), case.ends
    metered = case.meter.over(np.array([first]), np.array([last]))
    energy = metered.energy_j[0]
    totals = sums(pieces)
    assert abs(totals["energy_j"] - energy) <= 1e-9 * max(energy, 1)
    assert abs(totals["measured_s"] - metered.measured_s[0]) <= 1e-9 * LASTS
    assert abs(totals["sensed_j"] - metered.measured_j[0]) <= 1e-9 * max(energy, 1)
    low, high = pieces["idle_low_j"].fill_null(0), pieces["idle_high_j"].fill_null(0)
    assert (low <= high + 1e-9 * max(energy, 1)).all()
    for name in ("energy_j", "below_j", "above_j", "variance_j2", "measured_s", "idle_low_j"):
        assert (pieces[name].drop_nulls() >= -1e-9 * max(energy, 1)).all()


@settings(max_examples=count(25, short=6))
@given(cases(), st.integers(1, LASTS))
def test_cuts_and_meters_of_less_time_change_no_sum(case: Case, noon_and: int) -> None:
    """Days come one after another: two meters of a part of the time have what one has, as a cut there does."""
    undivided, cut = case.pieces(np.array([], np.int64)), case.pieces()
    for time in case.cuts // 1000:
        assert not ((cut["began"].dt.epoch("us") < time) & (cut["ended"].dt.epoch("us") > time)).any()
    energy = max(sums(undivided)["energy_j"], 1)
    assert abs(sums(undivided)["energy_j"] - sums(cut)["energy_j"]) <= 1e-9 * energy
    middle, meters = at(noon_and), case.meter.among
    halves = [half for half in (meters.between(None, middle), meters.between(middle, None)) if len(half)]
    halved = case.pieces(meters=halves)
    once = case.pieces(np.append(case.cuts, middle))
    jobs = [frame.group_by("kind", "allocation").agg(pl.col(SUMS).sum()).sort("kind", "allocation")
            for frame in (halved, once)]  # fmt: skip
    assert jobs[0]["allocation"].to_list() == jobs[1]["allocation"].to_list()
    for name in SUMS:
        np.testing.assert_allclose(jobs[0][name], jobs[1][name], rtol=1e-9, atol=1e-9 * energy)


# -- hosts -------------------------------------------------------------------------------------------------------------
# Energy of hosts: GPU + host = node, and where that is not known.


NOON_OF_DAY = datetime(2026, 11, 2, 12)  # noqa: DTZ001 - UTC
NOON_NS = int((NOON_OF_DAY - datetime(1970, 1, 1)).total_seconds()) * 10**9  # noqa: DTZ001
MINUTE_NS = 60 * 10**9


def meter(watts: list[float], covers: PowerOf = PowerOf.NODE_DC) -> NodeMeter:
    """A meter of node n1 that says the power of each minute from noon on; NaN where it was not read."""
    ts_ns = NOON_NS + np.arange(len(watts) + 1) * MINUTE_NS
    joules, seconds = np.nan_to_num(watts) * 60, np.where(np.isnan(watts), 0.0, 60.0)
    total_j, total_s = (np.append(0.0, np.cumsum(values)) for values in (joules, seconds))
    power_w, window_s = np.append(watts, 0.0), np.full(len(ts_ns), 60.0)
    return NodeMeter("c", "n1", PowerMeter.PDU, covers, ts_ns, ts_ns, total_j, total_s, power_w, window_s)


def pieces(*rows: tuple[str, float, float, float, float | None]) -> pl.DataFrame:
    """GPU, from and until (minutes after noon), share and power."""
    return pl.DataFrame(
        {
            "cluster": "c", "node": "n1", "gpu": [row[0] for row in rows],
            "began": [NOON_OF_DAY + timedelta(minutes=row[1]) for row in rows],
            "ended": [NOON_OF_DAY + timedelta(minutes=row[2]) for row in rows],
            "share": [row[3] for row in rows],
            "energy_j": [None if row[4] is None else row[4] * 60 * (row[2] - row[1]) for row in rows],
        },
        schema_overrides={"energy_j": pl.Float64},
    )  # fmt: skip


def test_the_hosts_of_all_pieces_add_up_to_what_the_node_used_beside_its_gpus() -> None:
    random = np.random.default_rng(7)
    watts = random.uniform(900, 1200, 60)
    rows = pieces(
        ("a", 0, 20, 1.0, 300.0), ("a", 20, 60, 0.25, 60.0), ("a", 20, 60, 0.75, 90.0), ("b", 0, 33, 1.0, 200.0),
        ("b", 33, 60, 1.0, 250.0),
    )  # fmt: skip
    hosts = measured_hosts(rows, [meter(watts.tolist())], {("c", "n1"): 2})
    host_j = hosts["measured_host_j"].to_numpy()
    assert host_j.sum() + rows["energy_j"].sum() == pytest.approx(watts.sum() * 60)
    assert host_j[1] * 3 == pytest.approx(host_j[2])
    # The first twenty minutes of GPU a: half of what the node drew beside both GPUs.
    assert host_j[0] == pytest.approx((watts[:20].mean() - 500) * 1200 / 2)
