"""Which GPUs of a campaign stand out, on what, how sure that is, and what it looks like.

Each GPU is compared with the GPUs of its model, probe by probe: the logarithm of its time in standard deviations of
the others (`statistics.outlying`). A GPU stands out where that cannot be chance, all looks of the campaign taken
together (Holm, family-wise), *and* the difference is large enough to matter. So of a hundred fleets whose GPUs
differ as one normal population does, at most one has a GPU named; a population with a heavier tail has more.

What is seen and not inferred needs no test: a wrong result, a GPU that fell off the bus, a frozen power reading.
docs/report.md says what this rests on and how often it was right.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ..store.events import EventKind
from ..store.metrics import board_power_mw
from ..store.outcomes import Outcome
from . import signatures
from .measurements import SOUND
from .probing import Probed
from .statistics.outlying import holm, robust_z, tail

if TYPE_CHECKING:
    from ..store import Store

ERROR_RATE = 0.01
"""Of a whole campaign: the chance that any GPU of one normal population is named."""
RELEVANT_PCT = 2.0
"""Less than this much of a time is not worth a look at the machine, however sure it is."""
RELEVANT_THERMAL_PCT = 15.0
LEAST_GPUS = 8
"""Of one model that ran a probe: with fewer, there is no population to differ from."""

THERMAL = "temperature rise"
"""The figure that is derived: kelvin a watt, over the probes of a campaign."""

_CLOCK_SD_PCT = 0.01  # no time is measured better than to a ten-thousandth
_KELVIN_SD = 0.41  # of the difference of two temperatures that are rounded to a degree
_POWER_RANGE = 0.3  # of the fleet's: a GPU whose power moves less shows no temperature rise
_FROZEN, _FROZEN_S = 10, 10.0  # readings that are the same to the milliwatt, and for this many s ...
_MOVED = 30  # ... while the utilisation moves by this many points, as in `collectors.quality`


@dataclass(frozen=True)
class Deviation:
    """A GPU that differs from the GPUs of its model in one figure of one probe."""

    probe: str
    """'' for a figure over all probes."""
    figure: str
    unit: str
    value: float
    typical: float
    """The median of the GPUs of its model."""
    excess_pct: float
    """By how much it is above the median: slower, hotter. Negative: below."""
    low_pct: float | None
    high_pct: float | None
    """The same with the 95 % interval of the GPU's own measurement; None where that has none."""
    z: float
    """In standard deviations of the others, on this side."""
    p: float
    """Adjusted for all looks of the campaign."""
    n: int
    """GPUs compared, this one included."""


@dataclass(frozen=True)
class StandsOut:
    """A GPU that stands out, with the evidence and what it looks like."""

    gpu: str
    node: str | None
    cabinet: str | None
    slot: int | None
    deviations: tuple[Deviation, ...]
    """The largest first."""
    seen: tuple[str, ...]
    """What was seen rather than inferred, in sentences."""
    cause: str
    """One of `signatures.CAUSES`."""
    looks: str
    """The same in words, with the figures that say so."""

    @property
    def p(self) -> float | None:
        """The smallest adjusted probability; None where all of it was seen."""
        return min((one.p for one in self.deviations), default=None)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "p": self.p}


@dataclass(frozen=True)
class Judged:
    """What came of looking at a campaign."""

    found: tuple[StandsOut, ...]
    """The worst first."""
    looks: int
    """Comparisons that were made; the error rate is over all of them."""
    not_judged: Mapping[str, str]
    """Probe -> why its times were not compared."""
    rises: Mapping[str, Deviation] = field(default_factory=dict)
    """GPU -> its temperature rise beside that of its model, whether it stands out or not."""


def judge(campaign: Probed, store: Store | None = None) -> Judged:
    """Who stands out of a campaign. With its `store`, frozen power readings are looked for in the telemetry."""
    frozen = {} if store is None else frozen_readings(store, campaign)
    seen = _seen(campaign, frozen)
    not_judged: dict[str, str] = {}
    looked: list[tuple[str, Deviation]] = []
    for name, one in _times(campaign, not_judged):
        looked.append((name, one))
    # Runs of no campaign may be days apart, at other temperatures of the inlet: their slope is not the GPU's.
    rises = _temperature_rises(campaign, frozen) if campaign.campaign else []
    looked += rises
    candidates = [
        (gpu, one, tail(one.z, one.n)) for gpu, one in looked if abs(one.excess_pct) >= _relevant(one) and _clear(one)
    ]
    deviations: dict[str, list[Deviation]] = {}
    for (gpu, one, _), p in zip(candidates, holm([p for _, _, p in candidates], len(looked)), strict=True):
        if p < ERROR_RATE:
            deviations.setdefault(gpu, []).append(_with(one, p))
    found = []
    places = {str(row["gpu"]): row for row in campaign.gpus.iter_rows(named=True)}
    evidence = signatures.Peers.of(campaign.runs)
    for gpu in {**deviations, **seen}:
        own = sorted(deviations.get(gpu, []), key=lambda one: -abs(one.excess_pct))
        sentences = tuple(sentence for _, sentence in seen.get(gpu, ()))
        cause, looks = signatures.cause(
            [one for one, _ in seen.get(gpu, ())],
            {one.probe: one.excess_pct for one in own if one.figure == "time"},
            next((one.excess_pct for one in own if one.figure == THERMAL), None),
            evidence.of_gpu(gpu),
        )
        row = places[gpu]
        found.append(StandsOut(gpu, row["node"], row["cabinet"], row["slot"], tuple(own), sentences, cause, looks))
    found.sort(key=_severity)
    return Judged(tuple(_shared_by_nodes(found, campaign.gpus)), len(looked), not_judged, dict(rises))


def _severity(one: StandsOut) -> tuple[int, float, float, str]:
    """What was seen comes first, then who is slow in work, then who is only warm."""
    times, rises = ([abs(d.excess_pct) for d in one.deviations if bool(d.probe) is timed] for timed in (True, False))
    return (
        signatures.CAUSES.index(one.cause) >= 3,
        -max(times, default=0),
        -max(rises, default=0),
        one.gpu,
    )


def _shared_by_nodes(found: Sequence[StandsOut], gpus: pl.DataFrame) -> list[StandsOut]:
    """The same, where all GPUs of a node of several are slow for no cause of their own: that looks like the host."""
    size = {str(node): int(n) for node, n in gpus.drop_nulls("node").group_by("node").len().iter_rows()}
    own = (signatures.UNEXPLAINED, signatures.BUS, signatures.STARVED)
    slow: dict[str, int] = {}
    for one in found:
        if one.cause in own and one.node is not None:
            slow[one.node] = slow.get(one.node, 0) + 1
    together = {node for node, n in slow.items() if n == size.get(node) and n > 1}
    return [
        replace(
            one,
            cause=signatures.HOST,
            looks=f"all {size[one.node]} GPUs of {one.node} are slow together: looks like the host",
        )
        if one.node in together and one.cause in own
        else one
        for one in found
    ]


def _relevant(one: Deviation) -> float:
    return RELEVANT_THERMAL_PCT if one.figure == THERMAL else RELEVANT_PCT


def _clear(one: Deviation) -> bool:
    """Whether the interval of the GPU's own measurement leaves the difference standing."""
    near = one.low_pct if one.excess_pct > 0 else one.high_pct
    return near is None or near * math.copysign(1, one.excess_pct) >= _relevant(one)


def _with(one: Deviation, p: float) -> Deviation:
    return Deviation(**{**asdict(one), "p": p})


def _times(campaign: Probed, not_judged: dict[str, str]) -> Iterator[tuple[str, Deviation]]:
    """Every GPU's time in every probe, against the GPUs of its model."""
    columns = ("value", "low", "high")
    for (model, probe), runs in sorted(
        campaign.sound.group_by(["model", "workload"]), key=lambda item: tuple(map(str, item[0]))
    ):
        one = runs.group_by("gpu").agg(pl.col(columns).median()).sort("gpu").filter(pl.col("value") > 0)
        if one.height < LEAST_GPUS:
            of = f" of model {model}" if len(campaign.models) > 1 else ""
            ran = f"{one.height} GPU{'' if one.height == 1 else 's'}{of} ran it"
            before = f"{not_judged[str(probe)]}; " if str(probe) in not_judged else ""  # of another model
            not_judged[str(probe)] = f"{before}{ran}; {LEAST_GPUS} are needed to tell which differ"
            continue
        value, low, high = (one[name].cast(pl.Float64).fill_null(math.nan).to_numpy() for name in columns)
        typical = float(np.median(value))
        own_sd = np.log(np.maximum(high, value) / np.minimum(low, value)) / (2 * 1.96)
        known = own_sd[np.isfinite(own_sd)]
        floor = max(_CLOCK_SD_PCT / 100, float(np.median(known)) if len(known) else 0.0)
        z = robust_z(np.log(value), floor, own_sd)
        for place, gpu in enumerate(one["gpu"]):
            near, far = (_percent(edge[place], typical) for edge in (low, high))
            excess = 100 * (float(value[place]) / typical - 1)
            yield (
                str(gpu),
                Deviation(
                    str(probe),
                    "time",
                    "ms",
                    float(value[place]),
                    typical,
                    excess,
                    near,
                    far,
                    float(z[place]),
                    1.0,
                    one.height,
                ),
            )


def _percent(value: float, typical: float) -> float | None:
    return 100 * (float(value) / typical - 1) if math.isfinite(value) else None


def _temperature_rises(campaign: Probed, frozen: Mapping[str, str]) -> list[tuple[str, Deviation]]:
    """Every GPU's temperature rise a watt over the campaign's probes, against the GPUs of its model.

    The slope of a line through (power, temperature) of its runs: what the inlet's temperature is does not matter to
    it. GPUs that sit further back in the air stream are warmed by those before them, so each slot of a node that has
    enough GPUs is centred on its own median.
    """
    found: list[tuple[str, Deviation]] = []
    known = campaign.runs.drop_nulls(["power_w", "temperature_c"]).filter(~pl.col("gpu").is_in(list(frozen)))
    power, heat = pl.col("power_w"), pl.col("temperature_c")
    slopes = (
        known.group_by("gpu", "model", "slot")
        .agg(
            pl.cov(power, heat).alias("together"),
            power.var().alias("spread"),
            (power.max() - power.min()).alias("range"),
            pl.len().alias("runs"),
        )
        # The slope of probes of seconds depends on which probes: only GPUs that ran as many as most are compared.
        .filter((pl.col("runs") >= 3) & (pl.col("spread") > 0))
        .filter(pl.col("runs") == pl.col("runs").median().over("model"))
        .with_columns((pl.col("together") / pl.col("spread")).alias("rise"))
        .filter((pl.col("rise") > 0) & (pl.col("range") >= _POWER_RANGE * pl.col("range").median().over("model")))
    )
    for (_,), some in slopes.sort("gpu").group_by(["model"], maintain_order=True):
        if some.height < LEAST_GPUS:
            continue
        fleet = pl.col("rise").median()
        own = pl.when(pl.len().over("slot") >= LEAST_GPUS).then(fleet.over("slot")).otherwise(fleet)
        centred = some.with_columns(own.alias("typical"))
        ratio = (centred["rise"] / centred["typical"]).to_numpy()
        floor = float(_KELVIN_SD / np.median(centred["rise"].to_numpy() * centred["range"].to_numpy()))
        for row, share, z in zip(centred.iter_rows(named=True), ratio, robust_z(np.log(ratio), floor), strict=True):
            excess = 100 * (float(share) - 1)
            one = Deviation(
                "", THERMAL, "K/W", row["rise"], row["typical"], excess, None, None, float(z), 1.0, some.height
            )
            found.append((str(row["gpu"]), one))
    return found


def _seen(campaign: Probed, frozen: Mapping[str, str]) -> dict[str, list[tuple[str, str]]]:
    """What was seen of GPUs: (cause, sentence) by GPU."""
    found: dict[str, list[tuple[str, str]]] = {}
    failed = campaign.runs.filter(pl.col("value").is_null() & ~SOUND)
    for gpu, probe, status, detail in failed.select("gpu", "workload", "status", "status_detail").iter_rows():
        cause = signatures.LOST if status == Outcome.LOST else signatures.FAILED
        found.setdefault(gpu, []).append((cause, f"{probe} did not end: {detail or status}"))
    lost = campaign.events.filter(pl.col("kind") == EventKind.LOST.value)
    for gpu, detail in lost.select("gpu", "detail").iter_rows():
        if all(cause != signatures.LOST for cause, _ in found.get(gpu, [])):
            found.setdefault(gpu, []).append((signatures.LOST, detail or "it was lost"))
    wrong = campaign.runs.filter(pl.col("wrong_elements") > 0)
    for (gpu,), runs in wrong.group_by(["gpu"], maintain_order=True):
        probes, ran = runs["workload"].to_list(), campaign.runs.filter(pl.col("gpu") == gpu)
        checked = ran["checked_elements"].is_not_null().sum() or ran.height
        most = int(runs["wrong_elements"].max())  # type: ignore[arg-type]
        sentence = f"wrong elements in {len(probes)} of {checked} checked results (up to {most:,}): {', '.join(probes)}"
        found.setdefault(str(gpu), []).append((signatures.WRONG, sentence))
    for gpu, sentence in frozen.items():
        found.setdefault(gpu, []).append((signatures.SENSOR, sentence))
    return found


def frozen_readings(store: Store, campaign: Probed) -> dict[str, str]:
    """GPUs whose power reading stood still while their load moved, with a sentence.

    The rule of `collectors.quality`, for a shorter time: ten readings or more over ten seconds or more that are the
    same to the milliwatt, while the utilisation moves by 30 points.
    """
    began, ended = campaign.runs["began"].min(), campaign.runs["ended"].max()
    if began is None or ended is None:
        return {}
    rows = (
        store.scan("telemetry")
        .filter(
            (pl.col("cluster") == campaign.cluster)
            & pl.col("gpu").is_in(campaign.gpus["gpu"].implode())
            & pl.col("ts").is_between(pl.lit(began), pl.lit(ended))
        )
        .select("gpu", "ts", "utilization", board_power_mw().alias("power"))
        .drop_nulls()
        .sort("gpu", "ts")
        .with_columns(pl.struct("gpu", "power").rle_id().alias("stretch"))
        .group_by("gpu", "stretch")
        .agg(
            pl.len().alias("n"),
            (pl.col("utilization").max() - pl.col("utilization").min()).alias("moved"),
            pl.col("power").first(),
            ((pl.col("ts").max() - pl.col("ts").min()).dt.total_nanoseconds() / 1e9).alias("span_s"),
        )
        .filter((pl.col("n") >= _FROZEN) & (pl.col("span_s") >= _FROZEN_S) & (pl.col("moved") >= _MOVED))
        .sort("gpu", "n")
        .group_by("gpu", maintain_order=True)
        .last()
    )
    return {
        row["gpu"]: f"the power reading stayed at {row['power'] / 1000:.3f} W for {row['span_s']:.0f} s "
        f"({row['n']} readings) while the utilisation moved by {row['moved']} points"
        for row in store.collect(rows).iter_rows(named=True)
    }
