"""What was found in the past of one workload, with names and dates, and with what else changed then."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import numpy as np
import polars as pl

from ...runs.sittings import PAUSE, Ints, date_of
from ..levels import in_pct
from ..states import codes
from ..verdict import Gap, Level, Measured, NotJudged, Quantity, State
from .finding import Finding, Shape
from .one_workload import past
from .own_past import interval
from .regimes import PLACE, SOFTWARE, Neighbours
from .together import Common

_DAY_NS = 86_400_000_000_000
_NEWEST_RUNS = 40
_KELVIN = 5.0  # differences in the conditions that are told beside a change
_READ = ("temperature_c", "sm_clock_mhz", "power_w")
_SHARES = {"sm_clock_mhz": (0.01, Quantity.CLOCK, "MHz"), "power_w": (0.05, Quantity.POWER, "W")}


class Telling:
    """One workload of a cluster: its past, and the way back to names."""

    def __init__(self, cluster: str, workload: str, runs: pl.DataFrame, beside: Neighbours) -> None:
        self.cluster, self.workload, self.beside = cluster, workload, beside
        self.said: list[NotJudged] = []
        coupled = int(runs["job_id"].is_not_null().sum()) * 2 > runs.height
        self.members: dict[str, tuple[str, ...]] = {name: (name,) for name in runs["gpu"].unique().sort().to_list()}
        self.of_nodes = coupled
        if coupled:
            self._leave_out(Gap.PAST_OF_NODES)
            runs, self.members = _by_job(runs)
        self.runs = runs
        self.names = sorted(self.members)
        places = runs.select("gpu", pl.coalesce("node", "had_node").alias("node")).unique("gpu", keep="last")
        nodes = dict(places.iter_rows())
        self.nodes: list[str | None] = [nodes.get(name) for name in self.names]
        # What may be different after a change: nothing else is looked up for each finding.
        varying = [name for name in (*SOFTWARE, *PLACE) if runs[f"had_{name}"].n_unique() > 1]
        kinds = {name: runs[f"had_{name}"].drop_nulls().unique().to_list() for name in varying}
        self.had = {name: (codes(runs[f"had_{name}"], words), words) for name, words in kinds.items()}
        self.read = {name: runs[name].cast(pl.Float64).fill_null(np.nan).to_numpy() for name in _READ}
        self.software = [name for name in SOFTWARE if name in varying]
        parts = [pl.col(f"had_{name}").fill_null("") for name in self.software] or [pl.lit("")]
        regime = runs.select(pl.concat_str(parts, separator="\n").alias("regime"))["regime"]
        self.regimes: list[str] = regime.unique().sort().to_list()
        self.past = past(
            codes(runs["gpu"], self.names),
            runs["began"].dt.epoch("ns").to_numpy() / _DAY_NS,
            np.log(runs["value"].cast(pl.Float64).to_numpy()),
            count=len(self.names),
            node=codes(pl.Series(self.nodes, dtype=pl.String), sorted({n for n in self.nodes if n is not None})),
            regime=codes(regime, self.regimes) if self.software else None,
            warmth=self.read["temperature_c"],
        )
        # Runs by sitting, to find the runs of a sitting again.
        self.places = self.past.runs.order
        self.begins = np.searchsorted(self.past.runs.sitting, np.arange(len(self.past.of) + 1))
        self._left_out()

    def findings(self) -> Iterator[Finding]:
        found, shapes = self.past, self.past.shapes
        for common in found.common:
            yield self._step(common)
        for row, (first, split, end) in zip(found.changed.tolist(), found.spans.tolist(), strict=True):
            yield self._change(row, float(shapes.change_p[row]), first, split, end)
        for row in found.drifting.tolist():
            yield self._drift(row)
        for series in found.unstable.tolist():
            yield self._unstable(series)

    def watched(self) -> Iterator[Finding]:
        """Changes at the newest sitting."""
        of, shapes = self.past.of, self.past.shapes
        for row in self.past.watched.tolist():
            first = int(of.first[shapes.series[row]])
            end = first + int(of.per_series[shapes.series[row]])
            yield self._change(row, float(shapes.newest_p[row]), first, end - 1, end, newest=True)

    def _leave_out(self, why: Gap, n: int | None = None) -> None:
        level = Level.NODE if self.of_nodes else Level.GPU
        total = None if n is None else len(self.names)
        self.said.append(NotJudged(self.cluster, self.workload, why, n=n, total=total, level=level))

    def _left_out(self) -> None:
        alone = int((self.past.of.per_series == 1).sum())
        if alone:
            self._leave_out(Gap.PAST_ONE_SITTING, alone)
        if self.past.noise is None and alone < len(self.names):
            self._leave_out(Gap.PAST_TOO_FEW)

    # the kinds of findings

    def _step(self, common: Common) -> Finding:
        names = [self.names[one] for one in common.series]
        gpus = tuple(gpu for name in names for gpu in self.members[name])
        joined = () if common.what is None else tuple(self._software(*common.what))
        began, before = date_of(common.began), date_of(common.before)
        effect, low, high = (in_pct(value) for value in (common.effect, common.low, common.high))
        of = self.past.of
        mine = np.flatnonzero((of.at >= common.began) & np.isin(of.series, common.series))
        ended = () if common.lasts else (Measured(Quantity.UNTIL),)
        several = bool(len(mine)) and float(of.at[mine].max()) - common.began >= PAUSE
        return Finding(
            Shape.STEP, None, " and ".join(map(_renewed, joined)) or f"all, on {began:%Y-%m-%d}", gpus, self.workload,
            effect, low,
            high, common.p, common.p, len(gpus), began, before,
            State.CONFIRMED if several and common.lasts else State.SUSPECTED, began, self._last(mine), self._ids(mine),
            (Measured(Quantity.LAST_BEFORE, at=before), *ended), joined,
        )  # fmt: skip

    def _change(self, row: int, p: float, first: int, split: int, end: int, *, newest: bool = False) -> Finding:
        """A change at sitting `split`, of the level since `first` to the level until `end`."""
        shapes = self.past.shapes
        series = int(shapes.series[row])
        before, after = np.arange(first, split), np.arange(split, end)
        if newest:
            other = shapes.another_sd[row] ** 2 - shapes.change_sd[row] ** 2
            move, reach = float(shapes.newest[row]), float(np.hypot(shapes.newest_sd[row], np.sqrt(max(other, 0.0))))
        else:
            value = self.past.of.value
            move, reach = float(np.median(value[after]) - np.median(value[before])), float(shapes.another_sd[row])
        df = np.array([shapes.change_df[row]])
        low, high = (float(bound[0]) for bound in interval(np.array([move]), np.array([reach]), df))
        effect, low, high = (in_pct(value) for value in (move, low, high))
        since, at = date_of(self.past.of.at[before[-1]]), date_of(self.past.of.at[after[0]])
        joined = tuple(self._beside(series, before, after))
        measured = [Measured(Quantity.LAST_BEFORE, at=since), Measured(Quantity.SITTINGS, len(after))]
        if end < self.past.of.first[series] + self.past.of.per_series[series]:
            measured.append(Measured(Quantity.UNTIL, at=date_of(self.past.of.at[end])))
        state = State.CONFIRMED if len(after) >= 2 else State.SUSPECTED
        return self._finding(
            Shape.CHANGE, series, (effect, low, high), p, float(self.past.change_q[row]), (since, at), state, after,
            tuple(measured), joined,
        )  # fmt: skip

    def _drift(self, row: int) -> Finding:
        shapes = self.past.shapes
        series = int(shapes.series[row])
        first = int(self.past.of.first[series] + self.past.start[row])
        mine = np.arange(first, first + int(shapes.sittings[row]))
        slope = np.array([shapes.slope[row]])
        low, high = interval(slope, np.array([shapes.slope_sd[row]]), np.array([shapes.slope_df[row]]))
        days = float(self.past.of.at[mine[-1]] - self.past.of.at[mine[0]])
        sizes = tuple(in_pct(float(value[0]) * days) for value in (slope, low, high))
        joined = tuple(self._beside(series, mine[: len(mine) // 2], mine[len(mine) // 2 :]))
        measured = (Measured(Quantity.SPAN, days, unit="d"), Measured(Quantity.SITTINGS, len(mine)))
        return self._finding(
            Shape.DRIFT, series, (sizes[0], sizes[1], sizes[2]), float(shapes.slope_p[row]),
            float(self.past.drift_q[row]), (None, None), State.CONFIRMED, mine, measured, joined,
        )  # fmt: skip

    def _unstable(self, series: int) -> Finding:
        scatter = self.past.scatter
        assert scatter is not None
        first = int(self.past.of.first[series])
        mine = np.arange(first, first + int(self.past.of.per_series[series]))
        by_runs = bool(scatter.by_runs[series])
        counts, of = (scatter.slow_runs, scatter.runs) if by_runs else (scatter.far_sittings, scatter.sittings)
        sizes = scatter.run_size if by_runs else scatter.sitting_size
        rate = scatter.run_rate if by_runs else scatter.sitting_rate
        effect, low, high = (in_pct(float(one[series])) for one in (sizes.median, sizes.low, sizes.high))
        many, all_of = int(counts[series]), int(of[series])
        quantity = Quantity.SLOWER_RUNS if by_runs else Quantity.FAR_SITTINGS
        measured = (Measured(quantity, many, rate, limit=all_of),)
        state = State.CONFIRMED if len(mine) >= 2 else State.SUSPECTED
        return self._finding(
            Shape.UNSTABLE, series, (effect, low, high), float(scatter.p[series]),
            float(self.past.scatter_q[series]), (None, None), state, mine, measured, (),
        )  # fmt: skip

    def _finding(
        self, kind: Shape, series: int, effect: tuple[float, float | None, float | None], p: float, q: float,
        when: tuple[datetime | None, datetime | None], state: State, shown: Ints, measured: tuple[Measured, ...],
        joined: tuple[Measured, ...],
    ) -> Finding:  # fmt: skip
        name = self.names[series]
        return Finding(
            kind, None if self.of_nodes else name, f"node {name}" if self.of_nodes else None, self.members[name],
            self.workload, effect[0], effect[1], effect[2], p, q, int(self.past.of.per_series[series]), when[1],
            when[0], state, date_of(self.past.of.at[shown[0]]), self._last(shown), self._ids(shown), measured, joined,
        )  # fmt: skip

    # the way back to runs

    def _rows(self, sittings: Ints) -> Ints:
        """The runs of these sittings, as rows of `self.runs`."""
        parts = [self.places[self.begins[one] : self.begins[one + 1]] for one in sittings.tolist()]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _ids(self, sittings: Ints) -> tuple[str, ...]:
        rows = self._rows(sittings[-_NEWEST_RUNS:])[-_NEWEST_RUNS:]
        return tuple(str(one) for one in self.runs["run_id"][rows.tolist()])

    def _last(self, sittings: Ints) -> datetime | None:
        rows = self._rows(sittings[-_NEWEST_RUNS:])
        return date_of(float(self.runs["began"][rows.tolist()].dt.epoch("ns").max()) / _DAY_NS) if len(rows) else None

    # what else changed

    def _software(self, old: int, new: int) -> Iterator[Measured]:
        pairs = zip(self.software, self.regimes[old].split("\n"), self.regimes[new].split("\n"), strict=True)
        for name, was, became in pairs:
            if was != became:
                yield Measured(name, text=became or None, text_before=was or None)

    def _beside(self, series: int, before: Ints, after: Ints) -> Iterator[Measured]:
        """What else is different after: software, place, neighbours, temperature, clock, power."""
        was, became = self._rows(before), self._rows(after)
        last, now = self._rows(before[-1:]), self._rows(after[:1])
        for name, (had, words) in self.had.items():
            old, new = (had[rows][had[rows] >= 0] for rows in (last, now))
            if len(old) and len(new) and old[-1] != new[0]:
                yield Measured(name, text=words[new[0]], text_before=words[old[-1]])
        if not self.of_nodes:
            since, until = (date_of(self.past.of.at[one]) for one in (before[-1], after[0]))
            for other in self.beside.new(self.nodes[series], self.names[series], since, until):
                yield Measured(Quantity.NEIGHBOUR, text=other)
        own = self._moved(was, became, "temperature_c")
        if own is not None and abs(own[1] - own[0]) >= _KELVIN:
            yield Measured(Quantity.TEMPERATURE, own[1], own[0], "degC")
            others = self._neighbours_temperature(series, before, after)
            if others is not None and np.sign(others[1] - others[0]) == np.sign(own[1] - own[0]) != 0:
                yield Measured(Quantity.NEIGHBOURS_TEMPERATURE, others[1], others[0], "degC")
        for name, (least, quantity, unit) in _SHARES.items():
            moved = self._moved(was, became, name)
            if moved is not None and moved[0] > 0 and abs(moved[1] / moved[0] - 1) >= least:
                yield Measured(quantity, moved[1], moved[0], unit)

    def _neighbours_temperature(self, series: int, before: Ints, after: Ints) -> tuple[float, float] | None:
        """The median temperature of the node's other GPUs in the same days."""
        node = self.nodes[series]
        if node is None or self.of_nodes:
            return None
        beside = (pl.coalesce("node", "had_node") == node) & (pl.col("gpu") != self.names[series])
        others = np.flatnonzero(self.runs.select(beside.fill_null(value=False)).to_series().to_numpy())
        began = self.runs["began"][others.tolist()].dt.epoch("ns").to_numpy() / _DAY_NS
        at = self.past.of.at
        edges = [(at[part[0]], at[part[-1]] + 1.0) for part in (before, after)]
        was, became = (others[(began >= low) & (began <= high)] for low, high in edges)
        return self._moved(was, became, "temperature_c")

    def _moved(self, was: Ints, became: Ints, name: str) -> tuple[float, float] | None:
        """The medians of what was read in these runs; None where nothing was."""
        old, new = (self.read[name][rows] for rows in (was, became))
        old, new = (values[np.isfinite(values)] for values in (old, new))
        return (float(np.median(old)), float(np.median(new))) if len(old) and len(new) else None


def _by_job(runs: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, tuple[str, ...]]]:
    """One row for each job on one node, whose name is the node's; and the GPUs of each."""
    jobs = (
        runs.filter(pl.col("job_id").is_not_null() & pl.col("node").is_not_null())
        .group_by("job_id", maintain_order=True)
        .agg(
            pl.col("node").n_unique().alias("nodes"),
            pl.col("value").median(),
            pl.col("gpu").unique().sort().alias("members"),
            pl.exclude("value", "gpu").first(),
        )
        .filter(pl.col("nodes") == 1)
        .with_columns(pl.col("node").alias("gpu"))
        .drop("nodes")
    )
    members = jobs.group_by("gpu").agg(pl.col("members").explode().unique().sort())
    return jobs.drop("members"), {str(node): tuple(gpus) for node, gpus in members.iter_rows()}


def _renewed(change: Measured) -> str:
    """A change of software as the name of the GPUs that have it."""
    return f"{change.figure} {change.text_before or 'unknown'} to {change.text or 'unknown'}"
