"""What other choices would do to work: the median GPU of its model, other models, power caps, another hour.

Each option changes one thing, and is a `Quote`: seconds, joules and grams, with 95 % intervals, or the reason why
there are none. Only the busy time gets shorter or longer: time that the GPU waited (for input, the host, other GPUs)
stays as it was. What a faster network or another number of GPUs would change is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from ...store.power_sensors import SENSOR_ERROR, SensorError
from ...store.vocabulary import Code
from ..power_classes import Curve, curves, sweep
from ..statistics.ordering import Floats, quantile
from ..tuning.curve import SAME_LEVEL, OwnCurve
from ..tuning.power_plan import Estimate
from .boards import POPULATION, BoardErrors, board_errors
from .levels import CLASSES, Ratio, fingerprints, identities, levels, medians, ratio, sizes, stands
from .outlook import WaitingJob, greenest
from .settings import EnergySettings

if TYPE_CHECKING:
    from ...store import Store

CAPS = (0.9, 0.8, 0.7, 0.6, 0.5)
"""Power caps that are quoted, as shares of the limit."""
_IDLE_RANGE = 2.0
"""Where nobody measured what another model draws without work, it is taken to be up to so many times more or less."""


class Option(StrEnum):
    """What an option changes."""

    AS_IT_RAN = "as it ran"
    DEFAULT = "default"
    USUAL = "usual GPU"
    MODEL = "model"
    CAP = "cap"
    START = "start"


class NoQuote(Code):
    """Why an option has no figures."""

    NO_ENERGY = "no energy", "there is no honest figure of the job's energy"
    NO_USE = "no utilisation", "nobody knows how long the GPUs were busy: collect `utilization`"
    NO_LEVEL = "no fingerprint", "its GPUs were not compared with others of their model: run `whorl campaign`"
    SEVERAL_MODELS = "several models", "it ran on GPUs of several models"
    NO_LIMIT = "no power limit", "the power limit of its GPUs is not known"
    DEADLINE = "deadline", "the job would not end before the deadline: give a later one"


@dataclass(frozen=True)
class Quote:
    """One option: seconds, joules of the GPUs, and grams of CO2e, each with its 95 % interval; None with a `reason`.

    `cost` is money. `start_ns` is the start (ns since 1970). `source` says what it is from, and `n` how many GPUs,
    workloads, runs or weeks that is. `pareto`: no other option is as good in time, joules and grams.
    """

    option: Option
    choice: str
    s: Estimate | None = None
    j: Estimate | None = None
    g: Estimate | None = None
    cost: float | None = None
    start_ns: int | None = None
    source: str | None = None
    n: int | None = None
    reason: str | None = None
    pareto: bool = False


@dataclass(frozen=True)
class QuotedWork:
    """What is known of a job or workload where it ran or would run: times in s, energies in J, powers in W; None where
    unknown."""

    cluster: str
    models: tuple[str, ...]
    gpus: int
    s: Estimate
    gpu_s: float
    j: Estimate | None
    idle_j: float | None
    """What its GPUs would have drawn without work."""
    busy: float | None
    use: str
    workload: str | None
    limit_w: float | None
    g: float | None
    cost: float | None
    method: str | None = None
    host_j: float = 0.0
    """Energy of the rest of the nodes, in grams and cost too; it follows the time."""
    load_half: float = 0.0
    """How far `load` may be off (ln, half of a 95 % interval). The error of a sensor is not in it, as the limit is held
    by the same sensor."""

    @property
    def waiting_j(self) -> float:
        """Energy of the time without a kernel; if the GPUs were never seen idle, the middle of what it can be."""
        waits = 1 - (self.busy or 0.0)
        joules = 0.0 if self.j is None else self.j.value
        return joules * waits / 2 if self.idle_j is None else self.idle_j * waits

    @property
    def load(self) -> float:
        """Power while busy, as a share of the limit."""
        assert self.j is not None
        assert self.busy is not None
        assert self.limit_w
        busy_s = self.gpu_s * self.busy
        return (self.j.value - self.waiting_j) / busy_s / self.limit_w if busy_s > 0 else 0.0

    @property
    def missing(self) -> NoQuote | None:
        """Why nothing can be said of other GPUs and caps."""
        return NoQuote.NO_ENERGY if self.j is None else NoQuote.NO_USE if self.busy is None else None


@dataclass(frozen=True)
class Multiple:
    """What an option does: ln of the busy time and of the busy energy, as multiples, with half of a 95 % interval."""

    time: float
    time_half: float
    energy: float
    energy_half: float
    waiting: float = 0.0
    """ln of the energy while it waits, likewise."""
    waiting_half: float = 0.0

    def then(self, near: Multiple, far: Multiple) -> Multiple:
        """This, and after it what changes from `near` to `far`."""
        return Multiple(
            self.time + far.time - near.time, math.hypot(self.time_half, far.time_half - near.time_half),
            self.energy + far.energy - near.energy, math.hypot(self.energy_half, far.energy_half - near.energy_half),
        )  # fmt: skip


@dataclass(frozen=True)
class Ground:
    """What quotes in one cluster stand on, the same for each of its jobs: how its GPUs and models compare."""

    notes: Sequence[str]
    fingerprints: pl.DataFrame
    gpus: pl.DataFrame
    """Its GPUs: `levels.identities`."""
    levels: pl.DataFrame
    stands: pl.DataFrame
    models: pl.DataFrame
    """`levels.medians`."""
    curves: Sequence[Curve]
    """What power caps did: `power_classes.curves`."""
    errors: BoardErrors = POPULATION
    """Of its power sensors."""


def ground(store: Store, cluster: str, sensor: SensorError = SENSOR_ERROR) -> Ground:
    """Read what the quotes in a cluster stand on."""
    rows, notes = fingerprints(store, cluster)
    gpus = identities(store).filter(pl.col("cluster") == cluster)
    standing = levels(rows, gpus, sensor=sensor)
    models = medians(rows, sizes(store))
    capped = curves(sweep(store, cluster=cluster))
    return Ground(notes, rows, gpus, standing, stands(standing), models, capped, board_errors(store, sensor))


# -- what a cap does ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CapModel:
    """What a power cap does to work that never ran under one, from workloads that did.

    Be z = ln(power without the cap / cap), and b = `BEND` ln(1 + e^(z / `BEND`)), which is 0 where the cap is far above
    the power and z where it is far below: ln(time / time without the cap) = `slowdown` b^1.5, and ln(power / power
    without the cap) = `below` - b.
    Work whose power varies meets a cap before its mean power does: hence the bend. The first watts cost little time, as
    power falls faster than the clock: hence the exponent.
    """

    slowdown: float
    slowdown_sd: float
    """From workload to workload."""
    below: float
    below_sd: float
    workloads: int
    names: tuple[str, ...] = ()
    """Those of the store, beside the published ones."""

    def multiple(self, load: float, share: float) -> Multiple:
        """What a cap at `share` of the limit does to work that draws `load` (a share of the limit) without it."""
        b = float(_bent(np.array(load), share))
        reach = float(quantile(0.025, self.workloads - 1)) * math.sqrt(1 + 1 / self.workloads)
        time, time_sd = self.slowdown * b**1.5, math.hypot(self.slowdown_sd * b**1.5, NOISE)
        touched = min(1.0, b / 0.1)  # a cap far above the power does nothing
        energy_sd = math.hypot(time_sd, self.below_sd * touched)
        return Multiple(time, reach * time_sd, time - b + self.below * touched, reach * energy_sd)

    def joined(self, others: Sequence[Curve]) -> CapModel:
        """With the workloads of a store, each of which counts as one more."""
        means = {}
        for family in sorted({curve.family for curve in others}):
            points = np.concatenate([cap_points(curve) for curve in others if curve.family == family], axis=1)
            if points.shape[1]:
                means[family] = points.mean(axis=1)
        if not means:
            return self
        n, stored = self.workloads + len(means), np.array(list(means.values()))
        published, sd = np.array([[self.slowdown, self.below], [self.slowdown_sd, self.below_sd]])
        middle = (self.workloads * published + stored.sum(axis=0)) / n
        squares = self.workloads * (sd**2 + (published - middle) ** 2) + ((stored - middle) ** 2).sum(axis=0)
        (slow, below), (slow_sd, below_sd) = middle.tolist(), np.sqrt(squares / (n - 1)).tolist()
        return CapModel(slow, slow_sd, below, below_sd, n, tuple(means))


BEND = 0.15
NOISE = 0.03
"""How far the time of a training differs from run to run under any cap (standard deviation of ln)."""
PUBLISHED = CapModel(0.76, 0.13, -0.05, 0.045, 5)
"""Of those five trainings of Zeus's sweeps on V100 and RTX 6000 that a cap holds down, as the files of Zeus show
them."""


def _bent(load: Floats, share: float) -> Floats:
    return np.asarray(BEND * np.logaddexp(0.0, np.log(load / share) / BEND))


def cap_points(curve: Curve) -> Floats:
    """(2, caps): `slowdown` and `below` at those caps of a curve that hold its power down."""
    b = _bent(np.array(curve.load), curve.share)  # type: ignore[arg-type]
    tells = (b > 0.15) & (curve.share < 1)
    return np.array([(np.log(curve.time) / b**1.5)[tells], (np.log(curve.power) + b)[tells]])


def caps(work: QuotedWork, base: Ground, itself: OwnCurve | None, *, shares: Sequence[float] = CAPS) -> list[Quote]:
    """The work under lower power caps, `shares` of its limit.

    The curve of its workload `itself` decides as far down as it goes. Below that, and without one, other workloads that
    ran under caps say what a cap does: those of the store that are of its use, if there are any, else all of them, each
    counted as one more beside the published ones.
    """
    if (why := work.missing) is not None or not work.limit_w:
        return [Quote(Option.CAP, "", reason=(why or NoQuote.NO_LIMIT).meaning)]
    classes = dict(base.models.select("workload", "class").iter_rows())
    of_use = {name for name, of_class in classes.items() if of_class in CLASSES.get(work.use, ())} | {work.workload}
    others = [curve for curve in base.curves if itself is None or curve.family != work.workload]
    similar = [curve for curve in others if curve.family in of_use]
    model = PUBLISHED.joined(similar or others)
    quotes = []
    for share in shares:
        quote = Quote(
            Option.CAP, f"{share * work.limit_w:.0f} W ({100 * share:.0f} %)",
            source=", ".join([*model.names, "published trainings"]), n=model.workloads,
        )  # fmt: skip
        multiple = _unsure_of_load(model, work, share)
        if itself is not None:
            lowest = min(1.0, itself.lowest * float(itself.uncapped_w.max()) / work.limit_w)
            effect = itself.effect(max(share, lowest) * work.limit_w, work.limit_w)
            assert effect is not None
            reach = float(quantile(0.025, itself.freedom))
            multiple = Multiple(effect.log_time, reach * effect.time_sd, effect.log_energy, reach * effect.energy_sd)
            quote = replace(quote, source=f"{work.workload} itself", n=itself.runs)
            if share < lowest - SAME_LEVEL:
                multiple = multiple.then(model.multiple(work.load, lowest), model.multiple(work.load, share))
                quote = replace(quote, source=f"{quote.source} down to {100 * lowest:.0f} %, published trainings")
        quotes.append(_changed(work, quote, multiple))
    return quotes


def _unsure_of_load(model: CapModel, work: QuotedWork, share: float) -> Multiple:
    """What a cap does where the power without it is not well known."""
    middle = model.multiple(work.load, share)
    loads = [min(1.0, work.load * math.exp(side * work.load_half)) for side in (-1, 1)]
    ends = [model.multiple(load, share) for load in loads if load > 0]
    return replace(middle, time_half=max([abs(end.time - middle.time) + end.time_half for end in (middle, *ends)]))


# -- options ------------------------------------------------------------------------------------------------------


def as_it_is(work: QuotedWork, option: Option = Option.AS_IT_RAN) -> Quote:
    """The work without any multiple."""
    quote = Quote(option, ", ".join(work.models) or "model unknown", work.s, n=work.gpus)
    if work.j is None:
        return replace(quote, reason=NoQuote.NO_ENERGY.meaning)
    return _billed(work, replace(quote, j=work.j))


def _billed(work: QuotedWork, quote: Quote) -> Quote:
    """With grams and money, at what a kWh emits and costs in the hours of the work itself."""
    assert work.j is not None
    assert quote.j is not None
    assert quote.s is not None
    all_j = work.j.value + work.host_j
    host_j = work.host_j * quote.s.value / work.s.value if work.s.value > 0 else 0.0
    if all_j <= 0:
        return quote
    shares = [(joules + host_j) / all_j for joules in (quote.j.value, quote.j.low, quote.j.high)]
    grams = None if work.g is None else Estimate(*(work.g * share for share in shares))
    return replace(quote, g=grams, cost=None if work.cost is None else work.cost * shares[0])


def _widened(estimate: Estimate, by: Estimate) -> Estimate:
    """An estimate with the relative error of another one too."""
    value, scale = estimate.value, estimate.value / by.value if by.value else 0.0
    low, high = (scale * max(0.0, away) for away in (by.value - by.low, by.high - by.value))
    return Estimate(
        value, max(0.0, value - math.hypot(value - estimate.low, low)), value + math.hypot(estimate.high - value, high)
    )


def _changed(work: QuotedWork, quote: Quote, multiple: Multiple) -> Quote:
    """The quote of the work under a multiple."""
    assert work.j is not None
    assert work.busy is not None
    busy_s, busy_j = work.s.value * work.busy, max(0.0, work.j.value - work.waiting_j)
    unsure_j = work.waiting_j if work.idle_j is None else 0.0  # never seen idle: between nothing and twice the middle
    seconds, joules = [], []
    for side in (0, -1, 1):
        seconds.append(busy_s * math.exp(multiple.time + side * multiple.time_half) + work.s.value - busy_s)
        resting = work.waiting_j * math.exp(multiple.waiting + side * multiple.waiting_half)
        resting += side * unsure_j * abs(math.exp(multiple.energy) - math.exp(multiple.waiting))
        joules.append(busy_j * math.exp(multiple.energy + side * multiple.energy_half) + resting)
    s, j = _widened(Estimate(*seconds), work.s), _widened(Estimate(*joules), work.j)
    return _billed(work, replace(quote, s=s, j=j))


def usual_gpu(work: QuotedWork, lost: Mapping[str, Any]) -> Quote:
    """The job on the median GPUs of its models. `lost`: its row of `add_excess`."""
    median = f"median {', '.join(work.models) or 'GPU'}"
    if work.j is None:
        return Quote(Option.USUAL, median, reason=NoQuote.NO_ENERGY.meaning)
    if lost["excess_s"] is None or lost["excess_j"] is None:
        why = NoQuote.NO_USE if work.busy is None else NoQuote.NO_LEVEL
        return Quote(Option.USUAL, median, reason=why.meaning)
    wall = work.s.value / work.gpu_s  # the job's time over the time of its GPUs
    s, j = (
        Estimate(*(used - lost[f"excess_{end}"] * scale for end in (unit, f"high_{unit}", f"low_{unit}")))
        for unit, used, scale in (("s", work.s.value, wall), ("j", work.j.value, 1.0))
    )
    quote = Quote(Option.USUAL, median, s, _widened(j, work.j), source="fingerprints", n=lost["compared"])
    return _billed(work, quote)


def other_models(work: QuotedWork, medians_of: pl.DataFrame, sensor: SensorError) -> list[Quote]:
    """The job on each other model of its cluster. `medians_of`: of `levels.medians`, of the cluster."""
    several = NoQuote.SEVERAL_MODELS if work.models else NoQuote.NO_LEVEL
    why = work.missing or (None if len(work.models) == 1 else several)
    models = sorted(set(medians_of["model"]) - set(work.models))
    if why is not None:
        return [Quote(Option.MODEL, model, reason=why.meaning) for model in models]
    return [_on_model(work, medians_of, model, sensor) for model in models]


def _on_model(work: QuotedWork, medians_of: pl.DataFrame, model: str, sensor: SensorError) -> Quote:
    pair = (work.models[0], model)
    time, energy_ratio = (
        ratio(medians_of, figure, pair, workload=work.workload, use=work.use, sensor=sensor)
        for figure in ("time", "work_per_joule")
    )
    if not isinstance(time, Ratio):
        return Quote(Option.MODEL, model, reason=time)
    if not isinstance(energy_ratio, Ratio):
        return Quote(Option.MODEL, model, reason=energy_ratio.replace("measured on", "measured with its power on"))
    idle_w = [
        medians_of.filter((pl.col("model") == name) & (pl.col("figure") == "idle_power"))["value"].median()
        for name in pair
    ]
    waiting = (0.0, math.log(_IDLE_RANGE))
    if idle_w[0] is not None and idle_w[1] is not None:
        waiting = (math.log(float(idle_w[1]) / float(idle_w[0])), 0.0)  # type: ignore[arg-type]
    quote = Quote(Option.MODEL, model, source=", ".join(time.workloads), n=time.gpus)
    return _changed(work, quote, Multiple(time.x, time.half, energy_ratio.x, energy_ratio.half, *waiting))


def starts(work: QuotedWork, settings: EnergySettings, now_ns: int, deadline_ns: int) -> list[Quote]:
    """The work now, and at the hour before the deadline at which it emits least."""
    if work.j is None or not work.j.value or work.s.value <= 0:
        return [Quote(Option.START, "", reason=NoQuote.NO_ENERGY.meaning)]
    if now_ns + work.s.value * 1e9 > deadline_ns:
        return [Quote(Option.START, "", reason=NoQuote.DEADLINE.meaning)]
    watts = (work.j.value + work.host_j) / work.s.value
    best = greenest(settings, WaitingJob(work.s.value, watts, now_ns, deadline_ns, work.cluster))
    if best.start is None or best.g is None or best.now_g is None:
        return [Quote(Option.START, "", reason=None if best.reason is None else best.reason.meaning)]
    outlook = None if best.outlook is None else best.outlook.meaning
    now = Quote(Option.START, "now", work.s, work.j, start_ns=now_ns, source=outlook, n=best.weeks)
    greenest_g = Estimate(best.g, best.g, best.g)
    if best.low_g is not None and best.high_g is not None:
        greenest_g = Estimate(best.g, best.now_g - best.high_g, best.now_g - best.low_g)
    return [
        replace(now, g=_widened(Estimate(best.now_g, best.now_g, best.now_g), work.j)),
        replace(now, choice="greenest", start_ns=best.start, g=_widened(greenest_g, work.j)),
    ]


def with_pareto(quotes: Sequence[Quote]) -> list[Quote]:
    """The quotes with those marked that no other one beats: none is as good in all of time, energy and grams and
    better in one. Grams count only where all quotes with figures have them."""
    with_grams = all(quote.g is not None for quote in quotes if quote.s is not None and quote.j is not None)
    points = [
        (quote.s.value, quote.j.value, quote.g.value if with_grams and quote.g else 0.0)
        if quote.s and quote.j
        else None
        for quote in quotes
    ]
    return [replace(quote, pareto=best) for quote, best in zip(quotes, unbeaten(points), strict=True)]


def unbeaten(points: Sequence[tuple[float, ...] | None]) -> list[bool]:
    """Which points no other one beats: lower in one figure and no higher in any. None is no point."""
    present = [point for point in points if point is not None]
    return [
        point is not None
        and not any(rival != point and all(a <= b for a, b in zip(rival, point, strict=True)) for rival in present)
        for point in points
    ]
