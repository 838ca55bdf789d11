"""The same job elsewhere: on a usual GPU, on other models, under power caps, at another hour.

Each option changes one thing. Time that the GPU waited (for input, the host, other GPUs) stays as it was; what a faster
network or another number of GPUs would change is not in it. An option without data is a row with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import polars as pl

from ....store.power_sensors import SensorError
from ....store.unbeaten import unbeaten
from ....store.vocabulary import Code
from ...power_classes import Curve, predict
from ...statistics.student import quantile
from ...tuning.curve import OwnCurve
from ..outlook import WaitingJob, greenest
from ..settings import EnergySettings
from .models import Ratio, ratio

CAPS = (0.9, 0.8, 0.7, 0.6, 0.5)
"""Power caps that are quoted, as shares of the limit."""
_MEAN_TO_SD = 1.2533
"""The standard deviation of a normal distribution over its mean absolute deviation."""
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
    NO_CURVES = "no caps", "no workload was run under several power limits: `whorl probe run --power-limit` does that"
    ONE_CURVE = "one workload", "only one workload was run under this cap, so nobody knows how far others follow it"


@dataclass(frozen=True)
class Ran:
    """What is known of a job: joules with their interval, times in s, powers in W; None where unknown."""

    cluster: str
    models: tuple[str, ...]
    gpus: int
    time_s: float
    gpu_s: float
    energy_j: float | None
    low_j: float | None
    high_j: float | None
    idle_j: float | None
    busy: float | None
    use: str
    workload: str | None
    limit_w: float | None
    co2e_g: float | None
    cost: float | None
    method: str | None = None
    host_j: float = 0.0
    """Energy of the rest of the nodes, in grams and cost too; it follows the time."""

    @property
    def waiting_j(self) -> float:
        """Energy of the time without a kernel; if the GPUs were never seen idle, the middle of what it can be."""
        waits = 1 - (self.busy or 0.0)
        return (self.energy_j or 0.0) * waits / 2 if self.idle_j is None else self.idle_j * waits

    @property
    def unsure_j(self) -> float:
        """How much more or less of the energy that may be."""
        return self.waiting_j if self.idle_j is None else 0.0

    @property
    def error(self) -> float:
        """Half of the interval of the energy, as a share of it."""
        assert self.energy_j
        assert self.low_j is not None
        assert self.high_j is not None
        return (self.high_j - self.low_j) / 2 / self.energy_j


@dataclass(frozen=True)
class Quote:
    """One option. Figures are None with a `reason`. `pareto`: no other option is as good in time, joules and grams."""

    option: Option
    what: str
    time_s: float | None = None
    time_low_s: float | None = None
    time_high_s: float | None = None
    energy_j: float | None = None
    low_j: float | None = None
    high_j: float | None = None
    co2e_g: float | None = None
    co2e_low_g: float | None = None
    co2e_high_g: float | None = None
    cost: float | None = None
    start_ns: int | None = None
    basis: str | None = None
    n: int | None = None
    reason: str | None = None
    pareto: bool = False


def as_it_ran(ran: Ran) -> Quote:
    """The job itself."""
    of = Quote(
        Option.AS_IT_RAN, ", ".join(ran.models) or "model unknown", ran.time_s, ran.time_s, ran.time_s, n=ran.gpus
    )
    if ran.energy_j is None or ran.low_j is None or ran.high_j is None:
        return replace(of, reason=NoQuote.NO_ENERGY.meaning)
    return _billed(ran, of, ran.energy_j, ran.low_j, ran.high_j)


def usual_gpu(ran: Ran, excess: dict[str, Any]) -> Quote:
    """The job on the median GPUs of its models. `excess`: its row of `excess.add`."""
    what = f"median {', '.join(ran.models) or 'GPU'}"
    if ran.energy_j is None:
        return Quote(Option.USUAL, what, reason=NoQuote.NO_ENERGY.meaning)
    if excess["excess_s"] is None or excess["excess_j"] is None:
        why = NoQuote.NO_USE if ran.busy is None else NoQuote.NO_LEVEL
        return Quote(Option.USUAL, what, reason=why.meaning)
    wall = ran.time_s / ran.gpu_s  # the job's time over the time of its GPUs
    best, low, high = (ran.time_s - excess[name] * wall for name in ("excess_s", "excess_high_s", "excess_low_s"))
    energy = [ran.energy_j - excess[name] for name in ("excess_j", "excess_high_j", "excess_low_j")]
    return _quoted(ran, Quote(Option.USUAL, what, best, low, high, basis="fingerprints", n=excess["compared"]), *energy)


def _quoted(ran: Ran, quote: Quote, energy: float, low: float, high: float) -> Quote:
    """With energy, grams and money; the interval is widened by that of the job's own energy."""
    own = ran.error * energy
    return _billed(ran, quote, energy, max(0.0, energy - math.hypot(energy - low, own)),
                   energy + math.hypot(high - energy, own))  # fmt: skip


def _billed(ran: Ran, quote: Quote, energy: float, low: float, high: float) -> Quote:
    """With energy, and grams and money as those of the job's own hours."""
    assert ran.energy_j is not None
    whole = ran.energy_j + ran.host_j
    host = ran.host_j * (quote.time_s or 0.0) / ran.time_s if ran.time_s > 0 else 0.0

    def of(value: float | None, joules: float) -> float | None:
        return None if value is None or whole <= 0 else value * (joules + host) / whole

    return replace(
        quote, energy_j=energy, low_j=low, high_j=high, co2e_g=of(ran.co2e_g, energy), co2e_low_g=of(ran.co2e_g, low),
        co2e_high_g=of(ran.co2e_g, high), cost=of(ran.cost, energy),
    )  # fmt: skip


def _scaled(
    ran: Ran, quote: Quote, time: tuple[float, float], energy: tuple[float, float], waiting: tuple[float, float]
) -> Quote:
    """A quote from factors of the busy time, of the busy energy and of the energy while it waits: ln of each, with half
    an interval."""
    assert ran.energy_j is not None
    assert ran.busy is not None
    busy_s, waits_s = ran.time_s * ran.busy, ran.time_s * (1 - ran.busy)
    busy_j = max(0.0, ran.energy_j - ran.waiting_j)
    (t, dt), (e, de), (w, dw) = time, energy, waiting
    seconds = [busy_s * math.exp(t + side * dt) + waits_s for side in (0, -1, 1)]
    joules = [
        busy_j * math.exp(e + side * de)
        + ran.waiting_j * math.exp(w + side * dw)
        + side * ran.unsure_j * abs(math.exp(e) - math.exp(w))
        for side in (0, -1, 1)
    ]
    best, low, high = seconds
    return _quoted(ran, replace(quote, time_s=best, time_low_s=low, time_high_s=high), *joules)


def _missing(ran: Ran) -> NoQuote | None:
    """Why nothing can be said of other GPUs and caps."""
    if ran.energy_j is None:
        return NoQuote.NO_ENERGY
    if ran.busy is None:
        return NoQuote.NO_USE
    return None


def other_models(ran: Ran, known: pl.DataFrame, sensor: SensorError) -> list[Quote]:
    """The job on each other model of its cluster. `known`: from `models.medians`, of the cluster."""
    found = []
    for model in sorted(set(known["model"]) - set(ran.models)):
        why = _missing(ran)
        if why is None and len(ran.models) != 1:
            why = NoQuote.SEVERAL_MODELS if ran.models else NoQuote.NO_LEVEL
        if why is not None:
            found.append(Quote(Option.MODEL, model, reason=why.meaning))
            continue
        found.append(_on_model(ran, known, ran.models[0], model, sensor))
    return found


def _on_model(ran: Ran, known: pl.DataFrame, own: str, model: str, sensor: SensorError) -> Quote:
    of = {
        figure: ratio(known, figure, own, model, workload=ran.workload, use=ran.use, sensor=sensor)
        for figure in ("time", "work_per_joule")
    }
    time, energy = of["time"], of["work_per_joule"]
    if not isinstance(time, Ratio):
        return Quote(Option.MODEL, model, reason=time)
    if not isinstance(energy, Ratio):
        return Quote(Option.MODEL, model, reason=energy.replace("measured on", "measured with its power on"))
    idle = [
        known.filter((pl.col("model") == one) & (pl.col("figure") == "idle_power"))["value"].median()
        for one in (own, model)
    ]
    waiting = (0.0, math.log(_IDLE_RANGE))
    if idle[0] is not None and idle[1] is not None:
        waiting = (math.log(float(idle[1]) / float(idle[0])), 0.0)  # type: ignore[arg-type]
    of_model = Quote(Option.MODEL, model, basis=", ".join(time.workloads), n=time.gpus)
    return _scaled(ran, of_model, (time.x, time.half), (energy.x, energy.half), waiting)


def caps(
    ran: Ran, known: Sequence[Curve], itself: OwnCurve | None = None, *, shares: Sequence[float] = CAPS
) -> list[Quote]:
    """The job under lower power caps, `shares` of its limit.

    The curve of its workload `itself` decides wherever it goes down to the cap, else other workloads that ran under
    caps.
    """
    why = _missing(ran)
    if why is None and not ran.limit_w:
        why = NoQuote.NO_LIMIT
    if why is None and not known and itself is None:
        why = NoQuote.NO_CURVES
    if why is not None:
        return [Quote(Option.CAP, "", reason=why.meaning)]
    return [_capped_itself(ran, itself, share) or _capped(ran, known, share) for share in shares]


def _capped_itself(ran: Ran, itself: OwnCurve | None, share: float) -> Quote | None:
    """From the workload's own curve; None where that does not go down to the cap."""
    assert ran.limit_w
    effect = None if itself is None else itself.effect(share * ran.limit_w, ran.limit_w)
    if itself is None or effect is None:
        return None
    reach = float(quantile(0.025, itself.freedom))
    quote = Quote(Option.CAP, _cap_name(ran.limit_w, share), basis=f"{ran.workload} itself", n=itself.runs)
    time, energy = (effect.log_time, reach * effect.time_sd), (effect.log_energy, reach * effect.energy_sd)
    return _scaled(ran, quote, time, energy, (0.0, 0.0))


def _cap_name(limit_w: float, share: float) -> str:
    return f"{limit_w * share:.0f} W ({100 * share:.0f} %)"


def _capped(ran: Ran, known: Sequence[Curve], share: float) -> Quote:
    assert ran.limit_w
    assert ran.energy_j is not None
    assert ran.busy is not None
    busy_j, busy_s = ran.energy_j - ran.waiting_j, ran.gpu_s * ran.busy
    load = busy_j / busy_s / ran.limit_w if busy_s > 0 else 0.0
    what = _cap_name(ran.limit_w, share)
    said = predict(known, load, share)
    if said.time is None or said.power is None:
        return Quote(Option.CAP, what, reason=said.reason)
    if said.time_error_pct is None or said.power_error_pct is None or said.families < 2:
        return Quote(Option.CAP, what, reason=NoQuote.ONE_CURVE.meaning)
    reach = float(quantile(0.025, said.families - 1)) * math.sqrt(1 + 1 / said.families) * _MEAN_TO_SD
    dt, dp = (reach * error / 100 for error in (said.time_error_pct, said.power_error_pct))
    of = Quote(Option.CAP, what, basis=", ".join(said.nearest), n=said.families)
    energy = math.log(said.time * said.power)
    return _scaled(ran, of, (math.log(said.time), dt), (energy, math.hypot(dt, dp)), (0.0, 0.0))


def starts(ran: Ran, settings: EnergySettings, now_ns: int, deadline_ns: int) -> list[Quote]:
    """The job now, and at the hour before the deadline at which it emits least."""
    if not ran.energy_j or ran.time_s <= 0:
        return [Quote(Option.START, "", reason=NoQuote.NO_ENERGY.meaning)]
    watts = (ran.energy_j + ran.host_j) / ran.time_s
    if now_ns + ran.time_s * 1e9 > deadline_ns:
        return [Quote(Option.START, "", reason="the job would not end before the deadline: give a later one")]
    best = greenest(settings, WaitingJob(ran.time_s, watts, now_ns, deadline_ns, ran.cluster))
    if best.start is None or best.g is None or best.now_g is None:
        return [Quote(Option.START, "", reason=None if best.reason is None else best.reason.meaning)]
    low = best.now_g - best.high_g if best.high_g is not None else None
    high = best.now_g - best.low_g if best.low_g is not None else None
    now = Quote(
        Option.START, "now", ran.time_s, ran.time_s, ran.time_s, ran.energy_j, ran.low_j, ran.high_j, best.now_g,
        start_ns=now_ns, basis=None if best.outlook is None else best.outlook.meaning, n=best.weeks,
    )  # fmt: skip
    later = replace(now, what="greenest", co2e_g=best.g, co2e_low_g=low, co2e_high_g=high, start_ns=best.start)
    return [now, later]


def with_pareto(quotes: Sequence[Quote]) -> list[Quote]:
    """The quotes with those marked that no other one beats: none is as good in all of time, energy and grams and
    better in one. Grams count only where all quotes with figures have them."""
    known = [one for one in quotes if one.time_s is not None and one.energy_j is not None]
    with_grams = bool(known) and all(one.co2e_g is not None for one in known)
    points = [
        None if s is None or j is None else (s, j, g if with_grams and g is not None else 0.0)
        for s, j, g in ((one.time_s, one.energy_j, one.co2e_g) for one in quotes)
    ]
    return [replace(one, pareto=best) for one, best in zip(quotes, unbeaten(points), strict=True)]
