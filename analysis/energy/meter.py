"""Meters: the energy of GPUs as functions of time, and how far they may be wrong.

      J │                    ╱ energy_j: by the counter where it is believed, else the trapezoid of power
        │             ______╱   over the time that each reading is of (`sensor`)
        │      ______╱ gap: the middle of what it can draw, with bounds below_j and above_j
        │_____╱
        └──────────────────────────── t
           ◄─L─a─L─►         ◄─L─b─L─►   a window from a to b

All figures are differences of functions that only grow with time, so those of two windows side by side add up to those
of both. How far an energy may be wrong has these terms:

* **the board**: gain and offset of its sensor (`calibration` has them; linear in energy and time, so not in a meter);
* **the lag**: all readings may be later or earlier by L. If the power is alike at both ends, a window loses at one what
  it gains at the other; a load edge between them moves its height x L in or out: |level_j(b) - level_j(a)|. Where
  power changes near an end, lag_j comes on top;
* **aliasing**: what the sensor missed (`store.aliasing`); with the lag it is a variance;
* **bounds**, which are added: of an end between two readings (doubt_j), of gaps, of counters that began anew, of clocks
  that were set back, of a counter and a power that differ.

An energy counter is not believed everywhere:

    counter  ──┐ reset      it fell to almost nothing: the driver was loaded again
    4294 kJ  ──┐ wrap       it fell from near its 32 bits: counted across
      grows too fast        a jump: more than one and a half times what the GPU can draw
      grows too slowly      stale: less than a third of the integrated power

Between the readings at which it moved (anchors), the power says how its energy is spread over time. A single odd value
is left out. Where it cannot be believed, the integrated power stands in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...store.power_sensors import NORMAL_95, sensor_of_model
from .aliasing import FLOOR, LIKELY, SUMS, variance_j2
from .idle import IDLE_SOURCES, IdlePower, IdleSource, idle_power
from .sensor import (
    Flags,
    Floats,
    Ints,
    Note,
    PowerSource,
    Problem,
    Readings,
    Reason,
    SensedPower,
    Times,
    aliasing,
    alike,
    beside,
    followed,
    notes_of,
    power_at,
    rows_of,
    sensed_power,
    steps,
)

_REASON = f"<U{max(len(reason) for reason in Reason)}"
_REFUSED_FROM = 0.5  # of a window without readings that count
_UNKNOWN_LIMIT = 1.5  # times the highest reading, where no limit is known
_MOST_W = 1500.0  # no board draws more: where neither a limit nor a reading is known
_OFTEN = 0.99  # quantile of the readings that counts as the most that work draws
_AGREE = 0.02  # a difference between counter and power that needs no mention
_AGREE_S = 10.0  # less time than this tells nothing of it
_JUMP = 1.5  # times the highest power that a counter may show
_CREEP = 0.3  # of the power: a counter that grows by less stands still
_SLACK_S = 0.3  # a counter is brought up to date now and then: so much of the power may come late or early
_WRAP_J = 2.0**32 / 1000  # a counter of 32 bits, mJ
_STALE_S = 10.0  # shorter standstills are not told of
PARTS = ("measured_j", "below_j", "above_j", *SUMS, "measured_s", "counter_s", "stuck_s", "zero_s")
"""What a meter sums up besides the energy: of `Energies`, and what its variance and its reasons are made of."""
ENDS = ("level_j", "lag_j", "doubt_j")
"""What a meter shows of the end of a window: the energy of the time that readings may lag by; what they may move across
the end as power changes near it; what may lie on the other side as the end is between two readings."""
_WATTS = ("idle_w", "idle_low_w", "idle_high_w", "lowest_w", "highest_w")
GPU = ["cluster", "gpu"]
BOARD: dict[str, pl.DataType] = {
    "cluster": pl.String(),
    "gpu": pl.String(),
    "first_ns": pl.Int64(),  # when the time that it meters begins, UTC: at its first reading, or later where less was
    "last_ns": pl.Int64(),  # asked for
    "origin_ns": pl.Int64(),  # time of the first knot
    "idle_w": pl.Float64(),  # what it draws without work; NaN where only bounds are known
    "idle_low_w": pl.Float64(),  # the interval of it; `idle_high_w` is NaN where nothing is known
    "idle_high_w": pl.Float64(),
    "idle_source": pl.String(),  # what it is known from: code of `IdleSource`
    "power_source": pl.String(),  # which readings gave most of the energy: code of `PowerSource`
    "limit_w": pl.Float64(),  # its power limit; NaN where unknown
    "lowest_w": pl.Float64(),  # the least and the most that it can draw, as far as is known: the bounds of gaps
    "highest_w": pl.Float64(),
    "empty": pl.String(),  # why it has no energy at all: code of `Reason`; NULL where it has
    "begins": pl.Int64(),  # its first knot, and the one after its last; it has two or more
    "ends": pl.Int64(),
}
"""The columns of `Meters.boards`."""
NOTES: dict[str, pl.DataType] = {
    "cluster": pl.String(), "gpu": pl.String(), "problem": pl.String(), "began": pl.Int64(), "ended": pl.Int64(),
    "joules": pl.Float64(), "percent": pl.Float64(), "seconds": pl.Float64(), "n": pl.Int64(),
    "has_rows": pl.Boolean(),
}  # fmt: skip
"""The columns of `Meters.notes`: the GPU, and the fields of a `Note`; times are in ns."""


@dataclass(frozen=True)
class Energies:
    """The energy of a GPU in n windows; arrays (n,)."""

    energy_j: Floats
    """Best estimate; over(a, b) + over(b, c) is over(a, c). It is there also where `reason` refuses it."""
    measured_j: Floats
    """Of it, what a sensor measured; the rest fills gaps."""
    below_j: Floats
    """How much less it could be: bounds, from gaps, ends of the window and what the counter and power disagree by."""
    above_j: Floats
    """How much more."""
    variance_j2: Floats
    """Of aliasing and lag. Independent from window to window where these last some minutes."""
    measured_s: Floats
    """Time with readings."""
    counter_s: Floats
    """Of it, time for which the energy counter was used."""
    reason: NDArray[np.str_]
    """Why it is no honest figure, a `Reason`; '' where it is one."""


@dataclass(frozen=True)
class Meters:
    """The energy of g GPUs as functions of time."""

    boards: pl.DataFrame
    """(g,) a row for each GPU: `BOARD`."""
    knots: Mapping[str, NDArray[Any]]
    """Arrays (k,) of the knots of all GPUs, which lie one after another.

    `ns` since `origin_ns`, on from the time of all GPUs before, so that they increase over all; `s` since `origin_ns`;
    `energy_j` from the first knot to each. Of the segment after a knot: `slope_j` and `bend_j`, where its energy to the
    fraction f of it is slope * f + bend * f**2; `edge_w`, the largest step of the power in it and in the one after it.
    The figures of `PARTS` to each knot; those that are 0 everywhere may be left out. Those of `ENDS` of a window that
    ends at the knot; between knots as a line.
    """
    notes: pl.DataFrame
    """What was found in their readings: `NOTES`."""

    def __len__(self) -> int:
        return self.boards.height

    def __getitem__(self, name: str) -> NDArray[Any]:
        """(g,) a column of `boards`."""
        return self.boards[name].to_numpy()

    @property
    def gpus(self) -> list[tuple[str, str]]:
        """Cluster and GPU of each."""
        return self.boards.select(GPU).rows()

    def over(self, numbers: Ints, began: Times, ended: Times) -> Energies:
        """The energy of these GPUs (numbers) from `began` to `ended` (ns UTC); arrays (n,).

        Raises ValueError where one ends before it begins.
        """
        if (ended < began).any():
            raise ValueError("a window ends before it begins")
        length = (ended - began) / 1e9
        since, until = self.at(numbers, began), self.at(numbers, ended)
        sums = {name: until[name] - since[name] for name in ("s", "energy_j", *PARTS, *ENDS)}
        energy, inside = sums["energy_j"], sums["s"]
        lag_j2 = (sums["level_j"] ** 2 + since["lag_j"] ** 2 + until["lag_j"] ** 2) / NORMAL_95**2
        doubt = since["doubt_j"] + until["doubt_j"]
        # What was not measured before the first reading and after the last is not in the energy: it may be more.
        lowest_w, highest_w = (self[name][numbers] for name in ("lowest_w", "highest_w"))
        beyond = (length - inside) * highest_w
        # No doubt goes further than the least and the most that the GPU can draw.
        spare_j = np.maximum(energy - lowest_w * inside, 0.0)
        room_j = np.maximum(highest_w * inside - energy, 0.0)
        variance = variance_j2([sums[name] for name in SUMS], length) + lag_j2
        return Energies(
            energy,
            sums["measured_j"],
            np.minimum(sums["below_j"] + doubt, spare_j),
            np.minimum(sums["above_j"] + doubt, room_j) + beyond,
            np.minimum(variance, (np.maximum(spare_j, room_j) / NORMAL_95) ** 2),
            sums["measured_s"],
            sums["counter_s"],
            self._reasons(numbers, length, sums),
        )

    def gaps(self, longer_s: float) -> tuple[Ints, Times]:
        """Where times of more than `longer_s` without readings begin and end: the GPUs (numbers) and when (ns UTC)."""
        if not len(self):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        at = np.flatnonzero((np.diff(self.knots["s"]) > longer_s) & (np.diff(self._sums("measured_s")) <= 0))
        numbers, inside = self._gpus_of(at)
        inside &= at < self["ends"][numbers] - 1
        numbers, at = numbers[inside], at[inside]
        times = self.knots["ns"]
        since = (self["origin_ns"] - times[self["begins"]])[numbers]
        return np.repeat(numbers, 2), (np.stack([times[at], times[at + 1]]) + since).T.ravel()

    def _gpus_of(self, at: Ints) -> tuple[Ints, Flags]:
        """The GPUs (numbers) that knots are of, and of which knots there is one: `only` keeps those of all."""
        begins, ends = self["begins"], self["ends"]
        order = np.argsort(begins)
        numbers = order[np.maximum(np.searchsorted(begins[order], at, "right") - 1, 0)]
        return numbers, (at >= begins[numbers]) & (at < ends[numbers])

    def _sums(self, name: str) -> Floats:
        """(k,) a figure of `PARTS`."""
        sums = self.knots.get(name)
        return np.zeros(len(self.knots["s"])) if sums is None else sums

    def between(self, since_ns: int | None, until_ns: int | None) -> Meters:
        """The same meters of less time, without those that have none of it."""
        boards = self.boards.with_columns(
            pl.max_horizontal("first_ns", pl.lit(since_ns, pl.Int64)).alias("first_ns"),
            pl.min_horizontal("last_ns", pl.lit(until_ns, pl.Int64)).alias("last_ns"),
        ).filter(pl.col("first_ns") <= pl.col("last_ns"))
        notes = self.notes.join(boards.select(*GPU, "first_ns", "last_ns"), on=GPU, nulls_equal=True)
        notes = notes.filter(pl.col("ended") >= pl.col("first_ns"), pl.col("began") <= pl.col("last_ns"))
        return replace(self, boards=boards, notes=notes.select(*NOTES))

    def only(self, numbers: Ints) -> Meters:
        """Some of them, in this order."""
        if np.array_equal(numbers, np.arange(len(self))):
            return self
        boards = self.boards[numbers]
        return replace(self, boards=boards, notes=self.notes.join(boards, on=GPU, how="semi", nulls_equal=True))

    def calibrated(self, learnt: pl.DataFrame) -> Meters:
        """The meters with what a calibration knows of their boards: while a sensor read, true energy is
        (1 + h) x read energy + p x time. `learnt`: cluster, gpu, h and p; meters of other GPUs stay as they are.
        """
        terms = self.boards.select(GPU).join(learnt, on=GPU, how="left", nulls_equal=True, maintain_order="left")
        if terms["h"].null_count() == len(self):
            return self
        h, p = terms.select(pl.col("h", "p").fill_null(0.0))
        boards = self.boards.with_columns((pl.col(_WATTS) * (1 + h) + p).clip(lower_bound=0.0))
        knots = dict(self.knots)
        read_j, read_s = self._sums("measured_j"), self._sums("measured_s")
        numbers, inside = self._gpus_of(np.arange(len(read_s)))
        h_of_knot, p_of_knot = (np.where(inside, term.to_numpy()[numbers], 0.0) for term in (h, p))
        more_j = h_of_knot * read_j + p_of_knot * read_s
        last = np.zeros(len(numbers), bool)
        last[self["ends"] - 1] = True  # of its GPU: no segment comes after it
        factor = np.where(~last & (steps(read_s) > 0), 1 + h_of_knot, 1.0)
        knots |= {name: knots[name] * factor for name in ("bend_j", "edge_w", *ENDS)}
        knots |= {"energy_j": knots["energy_j"] + more_j, "measured_j": read_j + more_j}
        knots["slope_j"] = np.where(last, 0.0, steps(knots["energy_j"])) - knots["bend_j"]
        return replace(self, boards=boards, knots=knots)

    @classmethod
    def joined(cls, parts: Sequence[Meters]) -> Meters:
        """The meters of all parts, one after another. The times that they last must not add up to 292 years."""
        if len(parts) == 1:
            return parts[0]
        first = np.cumsum([0, *(len(part.knots["ns"]) for part in parts)]).tolist()
        since = np.cumsum([0, *(int(part.knots["ns"][-1]) + 1 for part in parts)]).tolist()
        boards = [
            part.boards.with_columns(pl.col("begins", "ends") + knots)
            for part, knots in zip(parts, first, strict=False)
        ]
        names = dict.fromkeys(chain.from_iterable(part.knots for part in parts))
        knots = {name: np.concatenate([part._sums(name) for part in parts]) for name in names}
        knots["ns"] = np.concatenate([part.knots["ns"] + more for part, more in zip(parts, since, strict=False)])
        return cls(pl.concat(boards), knots, pl.concat([part.notes for part in parts]))

    def at(self, numbers: Ints, moments: Times, names: Sequence[str] = (*PARTS, *ENDS)) -> dict[str, Floats]:
        """What the meters of these GPUs (numbers) show at some times (ns UTC), each since its first knot; arrays (n,).

        `s` is the time on the meter; with it the energy and the figures of these `names`.
        """
        times, knots_s, energy_j = (self.knots[name] for name in ("ns", "s", "energy_j"))
        begins, ends = self["begins"][numbers], self["ends"][numbers]
        zero = times[begins]
        inside = np.minimum(np.maximum(moments - self["origin_ns"][numbers], 0), times[ends - 1] - zero)
        at = np.minimum(np.searchsorted(times, inside + zero, "right") - 1, ends - 2)  # the segment
        before, seconds = knots_s[at], np.minimum(inside / 1e9, knots_s[ends - 1])
        step = knots_s[at + 1] - before
        share = (seconds - before) / np.where(step > 0, step, 1.0)  # of it that has passed

        def line(name: str, share: Floats) -> Floats:
            values = self.knots.get(name)
            return np.zeros(len(at)) if values is None else values[at] + share * (values[at + 1] - values[at])

        since, slope, bend = energy_j[at], self.knots["slope_j"][at], self.knots["bend_j"][at]
        upto = since + slope * share + bend * share**2
        # What is measured of a segment grows as its energy does, which need not be a line.
        of_segment = energy_j[at + 1] - since
        of_energy = np.divide(upto - since, of_segment, out=share.copy(), where=of_segment > 0)
        figures = {name: line(name, of_energy if name == "measured_j" else share) for name in names}
        if "doubt_j" in figures:
            figures["doubt_j"] += self.knots["edge_w"][at] * share * (1 - share) * step
        return {"s": seconds, "energy_j": upto, **figures}

    def _reasons(self, numbers: Ints, length: Floats, sums: dict[str, Floats]) -> NDArray[np.str_]:
        reasons = np.zeros(len(length), _REASON)
        refused = sums["measured_s"] < _REFUSED_FROM * length
        if refused.any():
            missing = length - sums["measured_s"]
            reasons[refused] = Reason.GAPS
            reasons[refused & (sums["stuck_s"] > missing / 2)] = Reason.STUCK
            reasons[refused & (sums["zero_s"] > missing / 2)] = Reason.ZERO
            unread = sums["measured_s"] + sums["stuck_s"] + sums["zero_s"] == 0
            reasons[unread & (length > 0)] = Reason.NO_TELEMETRY
        empty = self.boards["empty"].fill_null("").to_numpy()[numbers].astype(_REASON)
        return np.where(empty != "", empty, reasons)


# -- from readings to meters -----------------------------------------------------------------------------------


def meters_of_readings(
    gpus: Sequence[tuple[str, str]],
    readings: Readings,
    limits_w: Sequence[float | None],
    *,
    models: Sequence[str | None],
    events: Sequence[Sequence[Note]],
) -> Meters:
    """The meters of some GPUs (cluster and GPU of each), of which there are as many readings each, or none.

    `limits_w` are their power limits where the readings have none; `events` are notes that were made elsewhere.
    """
    notes, limit_w = [list(of_gpu) for of_gpu in events], np.array([[limit] for limit in limits_w], np.float64)
    ts = readings.ts_ns
    if not ts.size:
        return _without_energy(gpus, np.zeros((len(gpus), 2), np.int64), limit_w, notes, Reason.NO_TELEMETRY)
    if readings.limit_w is not None:
        highest = np.fmax.reduce(readings.limit_w, axis=1, keepdims=True)
        limit_w = np.where(highest > 0, highest, limit_w)
    parts, order = list[Meters](), list[int]()
    for sensor, of_sensor in alike(None if model is None else sensor_of_model(model) for model in models).items():
        some = readings.each(partial(rows_of, of_sensor))
        if sensor is not None and sensor.of_module:  # they are of a whole module, processor included
            some = replace(some, counter_j=None, instant_w=None)
        for at, sensed in sensed_power(some, limit_w[of_sensor], sensor, [notes[gpu] for gpu in of_sensor.tolist()]):
            numbers = of_sensor[at]
            names, of_these = [gpus[gpu] for gpu in numbers.tolist()], [notes[gpu] for gpu in numbers.tolist()]
            n, all_ns = sensed.watts.shape[1], rows_of(numbers, ts)
            if n >= 2:
                parts.append(_metered(names, sensed, limit_w[numbers], of_these, all_ns))
            else:
                reason = Reason.NO_TELEMETRY if n else Reason.NO_SENSOR
                parts.append(_without_energy(names, all_ns[:, [0, -1]], limit_w[numbers], of_these, reason))
            order += numbers.tolist()
    return Meters.joined(parts).only(np.argsort(order))


def _metered(
    gpus: Sequence[tuple[str, str]], sensed: SensedPower, limit_w: Floats, notes: Sequence[list[Note]], all_ns: Times
) -> Meters:
    """`all_ns`: when there are rows, also those of which nothing counts."""
    ts, step = sensed.readings.ts_ns, sensed.step_s
    idle = idle_power(sensed, limit_w)
    floor_w, full_w, highest_w = _levels(sensed, idle, limit_w)
    power = power_at(sensed, np.where(limit_w > 0, (floor_w + highest_w) / 2, floor_w))
    together, powered = followed(sensed)
    slope, bend = step * power, step * steps(power) / 2
    by_power = slope + bend
    back, mixed = _clock_set_back(ts, notes)
    trusted, counter_j = np.zeros(ts.shape, bool), np.zeros(ts.shape)
    if (counter := sensed.readings.counter_j) is not None:
        counter = np.where((counter >= 0) & (counter < 2.0**53) & ~mixed, counter, np.nan)
        trusted, counter_j = _counted(ts, counter, by_power, powered=powered, highest_w=highest_w, notes=notes)
    energy = np.where(trusted, counter_j, by_power)
    blind = ~(trusted | powered)
    blind[:, -1] = False
    _note_gaps(sensed, blind, energy, all_ns=all_ns, notes=notes)
    # Within an interval the energy has the shape of the power, but where there is none.
    shaped = (by_power > 0) & ~blind
    factor = energy / np.where(shaped, by_power, 1.0)
    slope, bend = np.where(shaped, slope * factor, energy), np.where(shaped, bend * factor, 0.0)

    sums = np.array(aliasing(sensed, power, floor_w, full_w))
    both = trusted & powered & ~beside(mixed)
    apart = _disagreement(sensed, by_power, energy, sums=sums, both=both, notes=notes)
    if trusted.any():  # it misses nothing between its readings, but what it adds up may be those of the same sensor
        period = sensed.timing.period_s
        sums *= np.where(trusted, 1.0 - min(sensed.timing.window_s / period, 1.0), 1.0)
        sums[0] *= np.where(trusted, period / sensed.usual_s, 1.0)
    grown = {name: values * ~blind for name, values in zip(SUMS, sums, strict=True)}
    grown |= {"measured_j": energy * ~blind, "measured_s": step * ~blind, "counter_s": step * trusted}
    least_j = np.maximum(floor_w * step, np.where(trusted, 0.0, counter_j))
    for name, bound_j, share in (("below_j", energy - least_j, apart), ("above_j", highest_w * step - energy, -apart)):
        of_counter = np.where(trusted, np.maximum(share, 0.0) * energy, 0.0)
        grown[name] = np.where(blind, of_counter + np.maximum(bound_j, 0.0), of_counter)
    for name, flags in (("stuck_s", sensed.stuck), ("zero_s", sensed.zero)):
        grown[name] = np.where(blind & beside(flags), step, 0.0)
    for gpu, at, seconds in back:
        grown["above_j"][gpu, at] += seconds * highest_w[gpu, 0]
    jumps_w = np.abs(steps(power))
    edge_w = jumps_w.copy()
    np.maximum(jumps_w[:, :-1], jumps_w[:, 1:], out=edge_w[:, :-1])
    upto = _upto_each(energy)
    counted_s, first, last = (step * trusted).sum(axis=1), ts[:, 0], ts[:, -1]
    mostly = (counted_s > 0) & (2 * counted_s >= step.sum(axis=1))
    ends = ts.shape[1] * np.arange(1, len(gpus) + 1)
    since_ns = np.append(0, np.cumsum(last - first + 1)[:-1])[:, None]
    boards = _boards(
        gpus, np.stack([first, last], axis=1), limit_w, begins=ends - ts.shape[1], ends=ends,
        idle_w=idle.watts[:, 0], idle_low_w=idle.low_w[:, 0], idle_high_w=idle.high_w[:, 0],
        idle_source=np.array(IDLE_SOURCES)[idle.source[:, 0]],
        power_source=np.where(mostly, PowerSource.COUNTER.value, sensed.timing.source.value),
        lowest_w=floor_w[:, 0], highest_w=highest_w[:, 0],
    )  # fmt: skip
    knots = {
        "ns": ts - ts[:, :1] + since_ns, "s": sensed.times_s, "energy_j": upto, "slope_j": slope, "bend_j": bend,
        "edge_w": np.where(together, edge_w, highest_w - floor_w),
        **{name: _upto_each(grown[name]) for name in PARTS if grown[name].any()},
        **dict(zip(ENDS, _ends(sensed, upto), strict=True)),
    }  # fmt: skip
    return Meters(boards, {name: values.ravel() for name, values in knots.items()}, _noted(gpus, notes))


def _boards(
    gpus: Sequence[tuple[str, str]], ends_ns: Times, limit_w: Floats, **columns: NDArray[Any] | str
) -> pl.DataFrame:
    """Rows of `BOARD`; what is left out is NULL. `ends_ns` (g, 2), `limit_w` (g, 1)."""
    names = pl.DataFrame(gpus, {name: BOARD[name] for name in GPU}, orient="row")
    first_ns, last_ns = ends_ns.T
    times = {"first_ns": first_ns, "last_ns": last_ns, "origin_ns": first_ns, "limit_w": limit_w[:, 0]}
    figures = {"empty": None, **times, **columns}
    rows = names.with_columns(
        pl.Series(name, values) if isinstance(values, np.ndarray) else pl.lit(values).alias(name)
        for name, values in figures.items()
    )
    return rows.select(pl.col(name).cast(kind) for name, kind in BOARD.items())


def _noted(gpus: Sequence[tuple[str, str]], notes: Sequence[Sequence[Note]]) -> pl.DataFrame:
    """Rows of `NOTES`."""
    rows = [(*gpu, *astuple(note)) for gpu, of_gpu in zip(gpus, notes, strict=True) for note in of_gpu]
    return pl.DataFrame(rows, NOTES, orient="row")


def _upto_each(grown: Floats) -> Floats:
    """By reading, the sum over the intervals before it."""
    return np.pad(np.cumsum(grown[:, :-1], axis=1), ((0, 0), (1, 0)))


def _ends(sensed: SensedPower, energy_j: Floats) -> Floats:
    """(3, g, n) `ENDS`, from the energy up to each reading.

    With the power `early` and `late` in the time of the lag before and after an end, readings that lag by it move the
    end by lag x (early + late) / 2 as a level and by lag x (late - early) / 2 as power changes there. A mean over
    a window smears a step: a quarter of the window x (late - early) at most.
    """
    times, n = sensed.times_s, energy_j.shape[1]
    here, lag_s, smear_s = np.arange(n), sensed.timing.lag_s, sensed.timing.window_s / 4
    reach = sensed.reach(lag_s)
    back, ahead = np.maximum(here - reach, 0), np.minimum(here + reach, n - 1)
    early = (energy_j - energy_j[:, back]) / np.maximum(times - times[:, back], 1e-9)
    late = (energy_j[:, ahead] - energy_j) / np.maximum(times[:, ahead] - times, 1e-9)
    early[:, 0], late[:, -1] = late[:, 0], early[:, -1]
    level_j, moved_j = lag_s / 2 * (early + late), (lag_s / 2 + smear_s) * np.abs(late - early)
    return np.stack([level_j, moved_j, np.zeros(times.shape)])


def _clock_set_back(ts: Times, notes: Sequence[Sequence[Note]]) -> tuple[list[tuple[int, int, float]], Flags]:
    """Where a clock was set back: the GPU, the interval, and by how many s; and the readings of times that it showed
    twice: rows of both times lie mixed, and the counter to and fro."""
    back, mixed = [], np.zeros(ts.shape, bool)
    for gpu, of_gpu in enumerate(notes):
        for note in of_gpu:
            if note.problem == Problem.CLOCK_STEP and note.seconds is not None and note.seconds < 0:
                first, end = np.searchsorted(ts[gpu], [note.began_ns, note.ended_ns + 1]).tolist()
                mixed[gpu, first:end] = True
                back.append((gpu, min(first, ts.shape[1] - 2), -note.seconds))
    return back, mixed


def _note_gaps(
    sensed: SensedPower, blind: Flags, energy: Floats, *, all_ns: Times, notes: Sequence[list[Note]]
) -> None:
    """One note for each stretch without readings; `all_ns`: when there are rows, also those of which nothing counts."""
    gaps = blind & ~sensed.refused
    for gpu in np.flatnonzero(gaps.any(axis=1)).tolist():
        ts, at = sensed.readings.ts_ns[gpu], np.flatnonzero(gaps[gpu])
        first = np.append(True, np.diff(at) > 1)
        began, ended = ts[at[first]], ts[at[np.append(first[1:], True)] + 1]
        joules = np.add.reduceat(energy[gpu, at], np.flatnonzero(first))
        rows = np.setdiff1d(all_ns[gpu], ts) if all_ns.shape[1] > len(ts) else ts[:0]
        for note in notes_of(Problem.GAP, began, ended, joules):
            low, high = np.searchsorted(rows, [note.began_ns, note.ended_ns])
            notes[gpu].append(replace(note, has_rows=bool(low < high)))


def _levels(sensed: SensedPower, idle: IdlePower, limit_w: Floats) -> tuple[Floats, Floats, Floats]:
    """The least that each GPU draws, the most that its work draws often, and the most that it can draw at all."""
    watts, last = np.sort(sensed.watts, axis=1), np.count_nonzero(sensed.has_power, axis=1, keepdims=True) - 1
    at = np.maximum(last, 0)  # those that are not known come last
    lowest, often, highest = (
        np.take_along_axis(watts, place, axis=1) for place in (np.zeros_like(at), (_OFTEN * at).astype(np.int64), at)
    )
    limited = ~np.isnan(limit_w)
    least = np.where(~np.isnan(idle.watts), idle.low_w, np.where(limited, FLOOR * limit_w, 0.0))
    floor = np.fmin(lowest, least)
    full = np.where(limited, np.fmax(often, LIKELY * limit_w), often)
    most = np.where(limited, np.fmax(limit_w, highest), _UNKNOWN_LIMIT * highest)
    unknown = (last < 0) & ~(limit_w > 0)
    return np.where(unknown, 0.0, floor), np.where(unknown, 0.0, full), np.where(unknown, _MOST_W, most)


def _disagreement(
    sensed: SensedPower, by_power: Floats, energy: Floats, *, sums: Floats, both: Flags, notes: Sequence[list[Note]]
) -> Floats:
    """(g, 1) which share of it the counter has more than the integrated power, beyond what sampling explains; where
    there are `both`."""
    power, counter, independent_j2, alias_j2, seconds = (
        np.where(both, values, 0.0).sum(axis=1) for values in (by_power, energy, sums[0], sums[2], sensed.step_s)
    )
    doubt = 2 * np.sqrt(independent_j2 + alias_j2) + _AGREE * power
    excess_j, share = counter - power, np.zeros((len(power), 1))
    differ = (power != 0) & (counter != 0) & (seconds >= _AGREE_S) & (np.abs(excess_j) > doubt)
    for gpu in np.flatnonzero(differ).tolist():
        first, last = np.flatnonzero(both[gpu])[[0, -1]].tolist()
        began_ns, ended_ns = sensed.readings.ts_ns[gpu, [first, last + 1]].tolist()
        joules = float(excess_j[gpu])
        notes[gpu].append(Note(Problem.DISAGREE, began_ns, ended_ns, joules, float(100 * joules / power[gpu])))
        share[gpu] = (joules - np.copysign(doubt[gpu], joules)) / counter[gpu]
    return share


def _without_energy(
    gpus: Sequence[tuple[str, str]], ends_ns: Times, limit_w: Floats, notes: Sequence[Sequence[Note]], reason: Reason
) -> Meters:
    """The meters of GPUs that have no energy at all, with readings from one time to another (g, 2)."""
    n = len(gpus)
    zeros, unknown = np.zeros(n), np.full(n, np.nan)
    boards = _boards(
        gpus, ends_ns, limit_w, begins=np.arange(0, 2 * n, 2), ends=np.arange(2, 2 * n + 2, 2), idle_w=unknown,
        idle_low_w=zeros, idle_high_w=unknown, idle_source=IdleSource.UNKNOWN.value,
        power_source=PowerSource.POWER.value, lowest_w=zeros, highest_w=np.nan_to_num(limit_w[:, 0]),
        empty=reason.value,
    )  # fmt: skip
    knots = dict.fromkeys(("s", "energy_j", "slope_j", "bend_j", "edge_w", *ENDS), np.zeros(2 * n))
    return Meters(boards, knots | {"ns": np.arange(2 * n)}, _noted(gpus, notes))


# -- the energy counter ----------------------------------------------------------------------------------------


def _counted(
    ts: Times, counter: Floats, by_power: Floats, *, powered: Flags, highest_w: Floats, notes: Sequence[list[Note]]
) -> tuple[Flags, Floats]:
    """By interval: whether the counter is believed, and what it counted, J; adds to the `notes`.

    `counter` is in J, NaN where it was not read; `by_power` is the energy of the integrated power, `powered` whether
    that was measured; `highest_w` is what a GPU can draw. Where a counter is not believed, its energy is 0, and where
    it began anew what it shows since: a bound from below.

    Places are among the readings of all GPUs, which lie one after another.
    """
    n = ts.shape[1]
    at = _anchors(counter)
    trusted, energy = np.zeros(ts.size, bool), np.zeros(ts.size)
    if not len(at):
        return trusted.reshape(ts.shape), energy.reshape(ts.shape)
    all_ns, power_j, gpu = ts.ravel(), by_power.ravel(), at // n
    value, anchor_ns, power = counter.ravel()[at], all_ns[at], np.add.reduceat(power_j, at)
    # By anchor: of the time to the next one. After the last of a GPU there is none.
    has_next = np.append(gpu[1:] == gpu[:-1], False)
    grown, lasted = np.where(has_next, steps(value), 0.0), np.where(has_next, steps(anchor_ns) / 1e9, 1.0)
    most = _JUMP * highest_w[gpu, 0] * (lasted + _SLACK_S)
    following = np.where(has_next, np.append(value[1:], 0.0), 0.0)
    wrapped = (grown < 0) & (following < _WRAP_J) & (value < _WRAP_J) & (value > _WRAP_J / 2)
    wrapped &= grown + _WRAP_J <= most
    grown = np.where(wrapped, grown + _WRAP_J, grown)
    fell = grown < 0
    reset = fell & (following <= most)
    jumped = grown > most + 1.0
    crept = grown < _CREEP * (power / lasted) * np.maximum(lasted - _SLACK_S, 0) - 1.0
    crept &= np.logical_and.reduceat(powered.ravel(), at) & has_next & ~fell
    good = has_next & ~(fell | jumped | crept)
    # Each reading's interval belongs to the anchors around it: its part of their energy is that of the power.
    after = slice(int(at[0]), None)
    place = np.repeat(np.arange(len(at)), np.diff(at, append=ts.size))
    trusted[after] = good[place]
    level = ~(power > 0)[place]
    step = steps(ts).ravel()[after] / 1e9
    spread = np.where(level, step / lasted[place], power_j[after] / np.where(level, 1.0, power[place]))
    energy[after] = np.where(trusted[after], grown[place] * spread, 0.0)
    next_at = np.append(at[1:], at[-1])
    energy[next_at[reset] - 1] = following[reset]
    for problem, flags, joules in (
        (Problem.COUNTER_RESET, reset, -grown),
        (Problem.COUNTER_BACK, fell & ~reset, -grown),
        (Problem.COUNTER_WRAP, wrapped, grown),
        (Problem.COUNTER_JUMP, jumped, grown),
        (Problem.COUNTER_STALE, crept & (lasted > _STALE_S), power - grown),
    ):
        for number in np.unique(gpu[flags]).tolist():
            of_gpu = flags & (gpu == number)
            notes[number].extend(notes_of(problem, anchor_ns[of_gpu], all_ns[next_at[of_gpu]], joules[of_gpu]))
    still_s = (ts[gpu, -1] - anchor_ns) / 1e9
    for anchor in np.flatnonzero(~has_next & (still_s > _STALE_S)).tolist():
        number, final, last = int(gpu[anchor]), int(at[anchor]), int(gpu[anchor] + 1) * n - 1
        lasted_s = lasted[(gpu == number) & has_next]
        usual_s = float(np.median(lasted_s)) if len(lasted_s) else 0.0  # it never moved
        is_read = len(lasted_s) > 0 or not np.isnan(counter[number, -1])
        missing_j = float(power_j[final:last].sum())
        if is_read and still_s[anchor] > 3 * usual_s and missing_j > highest_w[number, 0]:
            notes[number].append(Note(Problem.COUNTER_STALE, int(all_ns[final]), int(all_ns[last]), missing_j))
    return trusted.reshape(ts.shape), energy.reshape(ts.shape)


def _anchors(counter: Floats) -> Ints:
    """The readings at which the counter of their GPU had moved, without values that one reading alone has."""
    values, n = counter.ravel(), counter.shape[1]
    at = np.flatnonzero(~np.isnan(values))
    if len(at) > 2:
        before, here, after = values[at[:-2]], values[at[1:-1]], values[at[2:]]
        odd = np.zeros(len(at), bool)
        odd[1:-1] = (at[2:] // n == at[:-2] // n) & (after >= before) & ((here < before) | (here > after))
        odd[1:] &= ~odd[:-1]
        at = at[~odd]
    moved = np.ones(len(at), bool)
    moved[1:] = (values[at[1:]] != values[at[:-1]]) | (at[1:] // n != at[:-1] // n)
    return at[moved]
