"""Whose the energy of GPUs was: pieces of jobs, of nobody (idle) and of somebody unknown (unattributed), which balance.

1. The time of each GPU is cut where somebody comes or goes, and at the caller's cuts: spans (`_cut`).
2. The meters tell the energy of each span (`_measured`).
3. Where jobs hold the GPU, the energy of a span is split among them (`_split`). Idle power goes by the share that each
   holds, and that of the share that nobody holds is idle. What is above it goes by share x activity where the activity
   of all holders is known, else by share. Shares that add up to more than 1 are scaled to 1; who has an unknown share
   has an equal part of the rest. If the GPU was never seen idle, all goes by share, and that of the share that nobody
   holds is unattributed.
4. Where nobody holds it, a minute is unattributed if the GPU drew more than about its idle power for certain, which is
   also at the lower bound of the energy; else it is idle (`_nobodys`). It is unattributed too if it was not measured,
   or if a job had GPUs of this node and nobody knows which.

So the pieces of a GPU cover its metered time without overlap of shares, and their energies add up to its metered
energy. Jobs whose GPU nobody read or knows have pieces of 0 J with an upper bound and a reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...store.instants import times_of_ns
from ...store.vocabulary import Code
from .claims import (
    ALWAYS,
    NEVER,
    ORDER,
    OVER,
    PROBLEMS,
    RUNS,
    Claims,
    JobProblem,
    joined_crowds,
    of_claims,
    of_crowds,
    of_notes,
)
from .idle import IDLE_SOURCES, IdleSource
from .meter import NOTES, Meters
from .sensor import Flags, Floats, Ints, PowerSource, Reason, Times


class Kind(Code):
    """Whose the energy of a piece is."""

    JOB = "job", "a job had the GPU, or this share of it"
    IDLE = "idle", "no job had the GPU, or this share of it, and it did nothing"
    UNATTRIBUTED = (
        "unattributed",
        "no known job had it and nothing shows that it was idle, or a job had GPUs of the node and nobody knows which",
    )


class JobReason(Code):
    """Why the energy of a job is no honest figure, beside the reasons of meters."""

    BACKWARD = "ends before it begins", "it ends before it begins"
    GPU_NOT_KNOWN = "GPU not known", "nobody knows which GPUs it had"


PIECES: dict[str, pl.DataType] = {
    "cluster": pl.String(),
    "gpu": pl.String(),  # the physical GPU, also for a job on a MIG instance
    "node": pl.String(),
    "began": pl.Datetime("us"),
    "ended": pl.Datetime("us"),
    "kind": pl.String(),
    "allocation": pl.String(),  # of jobs_now; NULL but for jobs
    "share": pl.Float64(),  # the part of the GPU; energy splits by activity too where it is known
    "energy_j": pl.Float64(),  # NULL where nothing at all bounds it
    "idle_j": pl.Float64(),  # of it, what the GPU would have drawn without work; NULL where it was never seen idle
    "below_j": pl.Float64(),  # how much less it could be, and more, because of gaps: bounds add up linearly
    "above_j": pl.Float64(),
    "variance_j2": pl.Float64(),  # of sampling and of the ends: independent, adds up
    "sensed_j": pl.Float64(),  # of energy_j, what a sensor's gain acts on
    "sensed_s": pl.Float64(),  # share x the seconds that a sensor's offset acts on
    "measured_s": pl.Float64(),  # share x the seconds with readings
    "method": pl.String(),  # counter or power: which gave most of it; NULL where neither
    "reason": pl.String(),  # code: why energy_j is a bound and no figure; NULL where it is one
    "idle_low_j": pl.Float64(),  # the least and the most that idle_j may be: the same is wrong at all times of a GPU
    "idle_high_j": pl.Float64(),
    "idle_source": pl.Int8(),  # what idle_j stands on: number in `idle.IDLE_SOURCES`
}
"""The columns of a frame of pieces: what a job, or nobody, used of a GPU between two times. More may follow after them
(co2e_g, cost)."""

METERED: dict[str, pl.DataType] = {
    "cluster": pl.String(),
    "gpu": pl.String(),
    "node": pl.String(),
    "first": pl.Datetime("us"),
    "last": pl.Datetime("us"),
    "metered_j": pl.Float64(),
    "idle_w": pl.Float64(),
    "idle_low_w": pl.Float64(),
    "idle_high_w": pl.Float64(),
    "limit_w": pl.Float64(),
    "idle_source": pl.String(),
    "power_source": pl.String(),
}
"""The columns of `Attribution.metered`: a row for each GPU with readings, and its energy from the first to the last."""
_NAMES = {name: PIECES[name] for name in ("cluster", "gpu", "node")}
UNREAD: dict[str, pl.DataType] = _NAMES | {"limit_w": pl.Float64(), "began": pl.Int64(), "ended": pl.Int64()}
"""The columns of `SplitEnergy.unread`: GPUs with their power limits (NULL: not known), from when to when (ns UTC)."""
_NOTES = NOTES | {"node": pl.String()}
_METERED: dict[str, pl.DataType] = METERED | {"highest_w": pl.Float64()}
"""The columns of `SplitEnergy.metered`: also the most that the GPU can draw, as far as is known."""

_IDLE_MORE, _IDLE_MORE_W = 0.15, 5.0  # so much above its idle power a GPU still does nothing
_LONG_S = 60  # what was read just before and after a longer gap counts, though most of its minute has no readings
_ANY_W = 1e9  # more than any GPU draws: where nothing bounds its idle power but what it drew
_MINUTE_NS = 60_000_000_000
_MOST_MINUTES = 1_000_000  # of one GPU: longer times, of clocks that were wrong, are looked at in coarser steps
_KEYS = ["cluster", "gpu"]
_BY_ENERGY = ("below_j", "above_j", "variance_j2", "sensed_j")
"""What goes with the energy of a part of a span; the other figures go by its share of the GPU."""
_BY_SHARE = ("idle_j", "idle_low_j", "idle_high_j", "measured_s", "counter_s")
_FIGURES = ("energy_j", *_BY_ENERGY, *_BY_SHARE)
_OF_PIECES = ("gpu", "began", "ended", "reason", "energy_j", "variance_j2")
"""What is asked of the energy of whole GPUs in the time of a piece."""


@dataclass(frozen=True)
class Spans:
    """Times of GPUs. Arrays (n,)."""

    gpu: Ints
    """The number of the GPU among those of some meters."""
    began: Times
    ended: Times

    def __len__(self) -> int:
        return len(self.gpu)

    def __getitem__(self, which: Flags | Ints) -> Spans:
        return Spans(self.gpu[which], self.began[which], self.ended[which])

    @classmethod
    def joined(cls, parts: Sequence[Spans]) -> Spans:
        """All of them, one after another; none of no parts."""
        columns = [[getattr(part, name) for part in parts] for name in ("gpu", "began", "ended")]
        return cls(*(np.concatenate([np.zeros(0, np.int64), *column]) for column in columns))


@dataclass(frozen=True)
class Covered:
    """Which spans each of some windows covers: those from `begins` up to `ends`. Arrays (windows,)."""

    begins: Ints
    ends: Ints

    def spans(self) -> tuple[Ints, Ints]:
        """A row for each span in each window: the window and the span."""
        sizes = self.ends - self.begins
        window = np.repeat(np.arange(len(sizes)), sizes)
        return window, np.arange(len(window)) - np.repeat(np.cumsum(sizes) - sizes - self.begins, sizes)

    def windows(self, spans: int) -> Ints:
        """By span, how many windows cover it. (spans,)"""
        steps = np.bincount(self.begins, minlength=spans + 1) - np.bincount(self.ends, minlength=spans + 1)
        return np.cumsum(steps)[:spans]


@dataclass(frozen=True)
class SplitEnergy:
    """The energy of some GPUs in some time, split among claims: what a part of the books has."""

    pieces: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=PIECES))
    """Columns of `PIECES`."""
    metered: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_METERED))
    """A row for each meter: columns of `METERED`, and the most that the GPU can draw."""
    crowds: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=PROBLEMS))
    """Claims that do not fit together: columns of `PROBLEMS`."""
    notes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_NOTES))
    """What the meters found: `meter.NOTES`, and the node of each GPU."""
    unread: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=UNREAD))
    """Times of GPUs in which readings may lack, as a part or a file could not be read: columns of `UNREAD`."""
    left_out: str | None = None
    """Which files cannot be read, and why."""


@dataclass(frozen=True)
class _Held:
    """The energy of some GPUs, and who held them. Rows are told by number."""

    metered: pl.DataFrame
    """A row for each GPU: `_METERED`."""
    spans: pl.DataFrame
    """The columns of `_energies`, and the kind of spans that nobody holds; '' of others."""
    pieces: pl.DataFrame
    """What a claim has between two cuts: `_OF_PIECES`, and the claim."""
    holders: pl.DataFrame
    """For each claim and each span in which it holds the GPU: span, piece, claim; the share that is stated and how
    active it was (NaN: unknown)."""

    def after(self, others: _Held) -> _Held:
        """The same with numbers that go on from those of others: frames of many GPUs cost hardly more than of few."""
        gpu = pl.col("gpu") + others.metered.height
        numbers = pl.col("span") + others.spans.height, pl.col("piece") + others.pieces.height
        tables = self.metered, *(part.with_columns(gpu) for part in (self.spans, self.pieces))
        together = zip(vars(others).values(), (*tables, self.holders.with_columns(numbers)), strict=True)
        return _Held(*(pl.concat(parts, rechunk=False) for parts in together))


class Attribution:
    """The split of metered energy among claims. `metered` and `problems` are whole when `pieces` has ended."""

    def __init__(
        self, claims: Claims, *, cuts: Sequence[int] | Times = (), since_ns: int | None = None,
        until_ns: int | None = None,
    ) -> None:  # fmt: skip
        """The time from `since_ns` to `until_ns` (UTC; None: all that was metered). `cuts` are times (ns, UTC) at which
        every piece ends."""
        self._claims, self._since, self._until = claims, since_ns, until_ns
        self._cuts = np.unique(np.concatenate([np.asarray(cuts, np.int64), claims.move_times]))
        self._metered = [pl.DataFrame(schema=_METERED)]
        self._problems = [pl.DataFrame(schema=PROBLEMS)]

    @property
    def metered(self) -> pl.DataFrame:
        """What the meters of each GPU have together, by cluster and GPU: columns of `METERED`."""
        rows = pl.concat(self._metered).sort(*_KEYS, "first")
        lasted_s = (pl.col("last") - pl.col("first")).dt.total_nanoseconds() / 1e9
        known_s = pl.when(pl.col("idle_w").is_not_null()).then(lasted_s)
        idle_w = (pl.col("idle_w") * known_s).sum() / known_s.sum()
        rank = pl.col("idle_source").replace_strict({name: at for at, name in enumerate(IDLE_SOURCES)})
        return rows.group_by(_KEYS, maintain_order=True).agg(
            pl.col("node").last(), pl.col("first").min(), pl.col("last").max(), pl.col("metered_j").sum(),
            pl.when(pl.len() == 1).then(pl.col("idle_w").first()).when(known_s.sum() > 0).then(idle_w).alias("idle_w"),
            pl.col("idle_low_w").min(), pl.col("idle_high_w").max(), pl.col("limit_w").last(),
            pl.col("idle_source").sort_by(rank).last(), pl.col("power_source").sort_by(lasted_s).last(),
        )  # fmt: skip

    @property
    def problems(self) -> pl.DataFrame:
        """What is wrong with readings and claims, in order of GPU and time: columns of `PROBLEMS`."""
        return pl.concat(self._problems).unique().sort(*ORDER, nulls_last=True)

    def split(self, read: Iterable[Meters]) -> SplitEnergy:
        """What meters show, split among the claims of their GPUs. It does not change this attribution."""
        together, notes = None, [pl.DataFrame(schema=NOTES)]
        for meters in read:
            held = self._held(meters)
            together = held if together is None else held.after(together)
            notes.append(meters.notes)
        if together is None:
            return SplitEnergy()
        metered, spans = together.metered, together.spans
        source = pl.col("idle_source").replace_strict({name: at for at, name in enumerate(IDLE_SOURCES)})
        gpus = metered.select("cluster", "gpu", "node", source.cast(pl.Int8))
        holders = _with_shares(together.holders)
        split = pl.concat([_of_jobs(spans, together.pieces, holders), _of_nobody(spans, holders)], how="diagonal")
        pieces = _finished(gpus[split["gpu"]].hstack(split.drop("gpu")), self._claims.jobs)
        crowds = of_crowds(holders, spans, self._claims)
        nodes = gpus.select(*_NAMES).unique(_KEYS)
        noted = pl.concat(notes).join(nodes, on=_KEYS, how="left", nulls_equal=True)
        return SplitEnergy(self._claims.placed(pieces), metered, crowds, noted)

    def pieces(self, splits: Iterable[SplitEnergy]) -> Iterator[pl.DataFrame]:
        """The pieces of all GPUs: frames with the columns of `PIECES`.

        `splits` are of some GPUs and some time each. The last frame has the claims that no meter covers, and times
        that could not be read.
        """
        lost = self._claims.on_nodes.drop_nulls("node")
        empty = SplitEnergy()
        unattributed, crowds, lacking, notes = [empty.pieces], [empty.crowds], [empty.unread], [empty.notes]
        for split in splits:
            self._metered.append(split.metered)
            crowds.append(split.crowds)
            notes.append(split.notes)
            lacking.append(split.unread)
            if lost.height:  # jobs had GPUs there that nobody knows
                free = split.pieces.filter(pl.col("kind") == Kind.UNATTRIBUTED.value)
                unattributed.append(free.join(lost, on=["cluster", "node"], how="semi", nulls_equal=True))
            if split.pieces.height:
                yield split.pieces
        self._problems += [joined_crowds(pl.concat(crowds)), *of_notes(pl.concat(notes), self.metered, self._claims)]
        unread = pl.concat(lacking)
        bounded = pl.concat([
            *self._unread(), *self._lost_times(unread), *self._unknown(pl.concat(unattributed)), *self._backward()
        ])  # fmt: skip
        if bounded.height:
            yield self._claims.placed(bounded)
        self._metered.append(_unmetered(unread, pl.concat(self._metered)))

    # -- time that meters cover -------------------------------------------------------------------------------

    def _held(self, meters: Meters) -> _Held:
        """The time of some GPUs, cut wherever somebody comes or goes, its energy, and who held it."""
        claims, count = self._claims, len(meters)
        first, last = meters["first_ns"], meters["last_ns"]
        first = first if self._since is None else np.maximum(first, self._since)
        last = np.maximum(first, last if self._until is None else np.minimum(last, self._until))
        read = Spans(np.arange(count), first, last)
        boards = meters.boards.with_row_index("number").cast({"number": pl.Int64})
        on_gpus = boards.select("number", *_KEYS).join(
            claims.on_gpus, on=_KEYS, nulls_equal=True, maintain_order="left_right"
        )
        at_first = on_gpus.unique(_KEYS, keep="first").select(*_KEYS, pl.col("node").alias("of_job"))
        for nodes in (claims.nodes, at_first):
            boards = boards.join(nodes, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
        boards = boards.with_columns(pl.coalesce("node", "of_job").alias("node"))
        claim, gpu = (on_gpus[name].to_numpy() for name in ("claim", "number"))
        inside, began, ended = claims.within(claim, first[gpu], last[gpu], last[gpu])
        lasts = began < ended
        claim, holds = claim[inside][lasts], Spans(gpu[inside], began, ended)[lasts]
        marks = np.repeat(np.arange(count), len(self._cuts)), np.tile(self._cuts, count)
        cut_spans, (of_holds, of_lost, _) = _cut([holds, self._lost(read, boards), read], marks)
        held = of_holds.windows(len(cut_spans)) > 0
        nobodys, idle = _nobodys(meters, cut_spans[~held], of_lost.windows(len(cut_spans))[~held] > 0)

        # A row for each claim and each span in which it holds the GPU; a piece is what a claim has between two cuts.
        hold, at = of_holds.spans()
        cut = np.searchsorted(self._cuts, cut_spans.began[at], "right")
        starts, stops = _runs(hold, cut)
        pieces = Spans(cut_spans.gpu[at[starts]], cut_spans.began[at[starts]], cut_spans.ended[at[stops]])
        kinds = np.concatenate([np.full(held.sum(), ""), np.where(idle, Kind.IDLE.value, Kind.UNATTRIBUTED.value)])
        span, several = (np.cumsum(held) - 1)[at], starts < stops
        energies = _energies(meters, Spans.joined([cut_spans[held], nobodys, pieces[several]]))
        row = np.where(several, len(kinds) + np.cumsum(several) - 1, span[starts])  # of a piece: most have one span
        metered = boards.with_columns(
            times_of_ns(pl.Series("first", first)).alias("first"), times_of_ns(pl.Series("last", last)).alias("last"),
            pl.Series("metered_j", meters.over(read.gpu, first, last).energy_j),
        )  # fmt: skip
        holders = {
            "span": span, "piece": np.repeat(np.arange(len(starts)), stops - starts + 1), "claim": claim[hold],
            "stated": claims["share"][claim[hold]],
            "active": claims.active(claim[hold], cut_spans.began[at], cut_spans.ended[at]),
        }  # fmt: skip
        return _Held(
            metered.select(pl.col(name).cast(kind).fill_nan(None) if kind == pl.Float64 else pl.col(name).cast(kind)
                           for name, kind in _METERED.items()),
            pl.DataFrame({name: values[: len(kinds)] for name, values in energies.items()} | {"kind": kinds}),
            pl.DataFrame({name: energies[name][row] for name in _OF_PIECES} | {"claim": claim[hold[starts]]}),
            pl.DataFrame(holders),
        )  # fmt: skip

    def _lost(self, read: Spans, boards: pl.DataFrame) -> Spans:
        """When jobs had GPUs of the node of a GPU and nobody knows which. `boards`: number, cluster, gpu, node."""
        on_nodes = self._claims.on_nodes
        if on_nodes.is_empty():
            return Spans.joined([])
        stays = self._claims.stays(boards.select("number", *_KEYS, "node")).drop_nulls("place")
        lost = stays.join(on_nodes, left_on=["cluster", "place"], right_on=["cluster", "node"], nulls_equal=True)
        gpu, claim, since, until = (lost[name].to_numpy() for name in ("number", "claim", "since", "until"))
        last = read.ended[gpu]
        ends = np.maximum(since, read.began[gpu]), np.minimum(until, last)
        inside, began, ended = self._claims.within(claim, *ends, last)
        return Spans(gpu[inside], began, ended)

    # -- claims that no meter covers --------------------------------------------------------------------------

    def _unread(self) -> Iterator[pl.DataFrame]:
        """Claims while nobody read the GPU: bounded by what it can draw, where that is known."""
        on_gpus, metered = self._claims.on_gpus, pl.concat(self._metered)
        gpus = on_gpus.select(_KEYS).unique(maintain_order=True)
        gpus = gpus.with_columns(pl.int_range(pl.len()).alias("number"))
        times = metered.join(gpus, on=_KEYS, nulls_equal=True)
        read = Spans(times["number"].to_numpy(), *(times[name].dt.epoch("ns").to_numpy() for name in ("first", "last")))
        last_ns = np.full(len(gpus), RUNS)
        np.maximum.at(last_ns, read.gpu, read.ended)
        claim = on_gpus["claim"].to_numpy()
        gpu = on_gpus.join(gpus, on=_KEYS, nulls_equal=True, maintain_order="left")["number"].to_numpy()
        inside, began, ended = self._claims.within(claim, self._since, self._until, last_ns[gpu])
        claim, holds = claim[inside], Spans(gpu[inside], began, ended)
        never = pl.DataFrame({"gpu": holds.gpu, "claim": claim, "began": began, "ended": ended})
        never = never.with_columns(self._claims.jobs["in_store"].gather(claim)).filter(last_ns[holds.gpu] == RUNS)
        never = never.group_by("gpu", "in_store", maintain_order=True).agg(
            pl.col("claim").first(), pl.col("began").min(), pl.col("ended").max(), pl.len().alias("n")
        )
        self._find(JobProblem.NO_TELEMETRY, never.filter("in_store"))
        self._find(JobProblem.UNKNOWN_GPU, never.filter(~pl.col("in_store")))

        spans, (of_holds, of_read) = _cut([holds, read], (np.zeros(0, np.int64), np.zeros(0, np.int64)))
        hold, at = of_holds.spans()
        dark = of_read.windows(len(spans))[at] == 0
        moment = began == ended
        claim = np.concatenate([claim[hold[dark]], claim[moment]])
        spans = Spans.joined([spans[at[dark]], holds[moment]])
        row, began, ended = cut_apart(spans.began, spans.ended, self._cuts)
        claim, gpu = claim[row], spans.gpu[row]
        limit_w = self._claims.jobs["limit_w"].gather(claim).fill_null(np.nan).to_numpy()
        most = metered.group_by(_KEYS, maintain_order=True).agg(pl.col("highest_w").last())
        most = gpus.join(most, on=_KEYS, how="left", nulls_equal=True, maintain_order="left")
        read_w = most["highest_w"].fill_null(np.nan).to_numpy()[gpu]
        share = np.nan_to_num(self._claims["share"][claim], nan=1.0)
        reason = np.where((began == ended) & (last_ns[gpu] != RUNS), "", str(Reason.NO_TELEMETRY))
        bounded = pl.DataFrame({"claim": claim, "began": began, "ended": ended, "share": share, "reason": reason})
        most_w = np.where(np.isnan(read_w), limit_w, read_w)
        yield self._bounded(bounded, share * most_w * (ended - began) / 1e9)

    def _lost_times(self, unread: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """What nobody had of GPUs while they could not be read: bounded as claims are."""
        unread = unread.with_row_index("number").with_columns(pl.col("number").cast(pl.Int64))
        number, began, ended = (unread[name].to_numpy() for name in ("number", "began", "ended"))
        held = unread.select("number", *_KEYS).join(self._claims.on_gpus, on=_KEYS, nulls_equal=True)
        claim, of_claim = (held[name].to_numpy() for name in ("claim", "number"))
        inside, *ends = self._claims.within(claim, began[of_claim], ended[of_claim], ended[of_claim])
        read = unread.join(pl.concat(self._metered).select(*_KEYS, pl.col("first", "last").dt.epoch("ns")), on=_KEYS,
                           nulls_equal=True)  # fmt: skip
        read = read.with_columns(first=pl.max_horizontal("first", "began"), last=pl.min_horizontal("last", "ended"))
        read = read.filter(pl.col("first") < pl.col("last"))
        was_read = Spans(*(read[name].to_numpy() for name in ("number", "first", "last")))
        marks = np.repeat(number, len(self._cuts)), np.tile(self._cuts, len(number))
        windows = [Spans(of_claim[inside], *ends), was_read, Spans(number, began, ended)]
        spans, (of_claims, of_read, _) = _cut(windows, marks)
        spans = spans[(of_claims.windows(len(spans)) == 0) & (of_read.windows(len(spans)) == 0)]
        free = pl.DataFrame({"began": spans.began, "ended": spans.ended}).with_columns(
            pl.lit(None, pl.Int64).alias("claim"), share=1.0, reason=pl.lit(Reason.NO_TELEMETRY.value)
        )
        gpus = unread[spans.gpu]
        most_j = gpus["limit_w"].fill_null(math.nan).to_numpy() * (spans.ended - spans.began) / 1e9
        yield self._bounded(free, most_j, gpus.select(*_NAMES))

    def _unknown(self, lost: pl.DataFrame) -> Iterator[pl.DataFrame]:
        """Jobs of which only the node is known: at most what is unattributed there meanwhile."""
        if self._claims.of_some_gpus:
            return
        had = self._claims.jobs["node_gpus"].fill_null(1.0).to_numpy()
        of_node = ["cluster", "node"]
        read = self.metered.group_by(of_node).agg(pl.col("last").max().dt.epoch("ns"))
        claims = self._claims.on_nodes.join(read, on=of_node, how="left", maintain_order="left")
        unattributed = dict(lost.group_by(of_node))
        for key, on_node in claims.group_by(of_node, maintain_order=True):
            claim, last_ns = on_node["claim"].to_numpy(), on_node["last"].fill_null(RUNS).to_numpy()
            inside, began, ended = self._claims.within(claim, self._since, self._until, last_ns)
            row, began, ended = cut_apart(began, ended, self._cuts)
            claim = claim[inside][row]
            spans = pl.DataFrame({"claim": claim, "began": began, "ended": ended, "share": had[claim]})
            jobs = pl.col("claim").n_unique().alias("n")
            first = spans.select(pl.col("claim").first(), pl.col("began").min(), pl.col("ended").max(), jobs)
            self._find(JobProblem.GPU_NOT_KNOWN, first.drop_nulls())
            spans = spans.with_columns(reason=pl.lit(JobReason.GPU_NOT_KNOWN.value))
            yield self._bounded(spans, _most_j(unattributed.get(key), began, ended))

    def _backward(self) -> Iterator[pl.DataFrame]:
        began, ended = self._claims["began"], self._claims["ended"]
        claim = np.flatnonzero((ended != RUNS) & (ended < began))  # they claim nothing
        spans = pl.DataFrame({"claim": claim, "began": began[claim], "ended": ended[claim]})
        self._find(JobProblem.BACKWARD, spans.with_columns(n=1))
        spans = spans.with_columns(ended="began", share=1.0, reason=pl.lit(JobReason.BACKWARD.value))
        yield self._bounded(spans, np.full(len(claim), np.nan))

    def _find(self, problem: JobProblem, times: pl.DataFrame) -> None:
        self._problems.append(of_claims(problem, self._claims, times))

    def _bounded(self, spans: pl.DataFrame, most_j: Floats, names: pl.DataFrame | None = None) -> pl.DataFrame:
        """Pieces of jobs without a meter: 0 J, and at most `most_j` more; unknown where that is NaN. No time, no
        energy. `spans`: claim, began, ended, share, reason; or without a claim, with the `names` of GPU and node."""
        kind = Kind.JOB if names is None else Kind.UNATTRIBUTED
        if names is None:
            names = self._claims.jobs[spans["claim"]].select(*_KEYS, pl.coalesce("gpu_node", "node").alias("node"))
        lasts = pl.col("ended") > pl.col("began")
        most = pl.when(lasts).then(pl.Series("most_j", most_j, pl.Float64)).otherwise(0.0)
        rows = names.hstack(spans).with_columns(
            kind=pl.lit(kind.value), idle_source=pl.lit(IDLE_SOURCES.index(IdleSource.UNKNOWN)),
            **dict.fromkeys(_FIGURES, 0.0),
        ).with_columns(
            energy_j=most * 0.0, idle_j=pl.when(lasts).then(math.nan).otherwise(0.0), above_j=most.fill_nan(0.0),
            idle_high_j=most,
        )  # fmt: skip
        return _finished(rows, self._claims.jobs)


# -- spans ----------------------------------------------------------------------------------------------------


def _cut(windows: Sequence[Spans], marks: tuple[Ints, Times]) -> tuple[Spans, list[Covered]]:
    """The time of GPUs from the first to the last of their windows, cut where a window begins or ends and at the marks
    (GPU and time); and which spans the windows of each group cover."""
    joined = Spans.joined(windows)
    if not len(joined):
        return joined, [Covered(joined.gpu, joined.gpu) for _ in windows]
    gpus = int(max(joined.gpu.max(), marks[0].max(initial=0))) + 1
    low, high = np.full(gpus, NEVER), np.full(gpus, ALWAYS)
    np.minimum.at(low, joined.gpu, joined.began)
    np.maximum.at(high, joined.gpu, joined.ended)
    inside = (marks[1] > low[marks[0]]) & (marks[1] < high[marks[0]])
    gpu = np.concatenate([joined.gpu, joined.gpu, marks[0][inside]])
    times, rank = np.unique(np.concatenate([joined.began, joined.ended, marks[1][inside]]), return_inverse=True)
    place = gpu * len(times) + rank
    edges = np.sort(place)  # np.unique is ten times as slow
    edges = edges[np.append(True, edges[1:] != edges[:-1])]
    gpu, edge_ns = edges // len(times), times[edges % len(times)]
    within = gpu[1:] == gpu[:-1]
    spans = Spans(gpu[:-1][within], edge_ns[:-1][within], edge_ns[1:][within])
    before = np.concatenate([[0], np.cumsum(within)])  # spans before each edge
    number = before[np.searchsorted(edges, place[: 2 * len(joined)])]
    sizes = np.cumsum([len(part) for part in windows])[:-1]
    begins, ends = (np.split(part, sizes) for part in np.split(number, 2))
    return spans, [Covered(*pair) for pair in zip(begins, ends, strict=True)]


def _runs(*keys: NDArray[Any]) -> tuple[Ints, Ints]:
    """Where rows that are alike in all `keys` begin and end (the last row), of those that stand side by side."""
    fresh = np.ones(len(keys[0]), bool)
    fresh[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    starts = np.flatnonzero(fresh)
    return starts, np.append(starts[1:], len(fresh))[: len(starts)] - 1


def _nobodys(meters: Meters, spans: Spans, lost: Flags) -> tuple[Spans, Flags]:
    """The spans in which nobody holds the GPU, cut where what it does changes, and whether it is idle there.

    `lost`: a job may have it, of which nobody knows which GPUs it had.
    """
    parts, (of_spans,) = _cut([spans], meters.gaps(_LONG_S))
    span, at = of_spans.spans()
    parts = parts[at]
    step = np.maximum(_MINUTE_NS, (meters["last_ns"] - meters["first_ns"]) // _MOST_MINUTES)[parts.gpu]
    before = parts.began // step  # the last mark that is not after the begin
    number = -(-parts.ended // step) - before  # of minutes
    part = np.repeat(np.arange(len(parts)), number + 1)
    mark = np.arange(len(part)) - np.repeat(np.cumsum(number + 1) - (number + 1), number + 1)
    mark = np.clip((before[part] + mark) * step[part], parts.began[part], parts.ended[part])
    upto = meters.at(parts.gpu[part], mark, ("below_j", "measured_s", "lag_j", "doubt_j"))
    least_j, edge_j = upto["energy_j"] - upto["below_j"], upto["lag_j"] + upto["doubt_j"]
    inner = part[1:] == part[:-1]
    lasted_s = np.diff(mark)[inner] / 1e9
    most_w = (meters["idle_w"] * (1 + _IDLE_MORE) + _IDLE_MORE_W)[parts.gpu][part[:-1][inner]]
    # Beside a job a reading may speak for both: the GPU worked where it drew more than that for certain.
    surely_j = (np.diff(least_j) - edge_j[1:] - edge_j[:-1])[inner]
    idle = (surely_j <= most_w * lasted_s) & (np.diff(upto["measured_s"])[inner] >= 0.5 * lasted_s)
    owner = span[part[:-1][inner]]
    idle &= ~lost[owner]
    starts, stops = _runs(owner, idle)
    return Spans(spans.gpu[owner[starts]], mark[:-1][inner][starts], mark[1:][inner][stops]), idle[starts]


def cut_apart(began: Times, ended: Times, cuts: Times) -> tuple[Ints, Times, Times]:
    """Times cut apart at `cuts` (sorted): which time each part is of, and its begin and end."""
    first, last = np.searchsorted(cuts, began, "right"), np.searchsorted(cuts, ended, "left")
    parts = np.maximum(last - first, 0) + 1
    row = np.repeat(np.arange(len(began)), parts)
    number = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
    padded = np.append(cuts, np.int64(0))
    begins = np.where(number == 0, began[row], padded[first[row] + number - 1])
    ends = np.where(number == parts[row] - 1, ended[row], padded[np.minimum(first[row] + number, len(cuts))])
    return row, begins, ends


# -- energy ---------------------------------------------------------------------------------------------------


def _energies(meters: Meters, spans: Spans) -> dict[str, NDArray[Any]]:
    """The energy of whole GPUs: gpu, began, ended, `_FIGURES` (NaN: unknown) and reason."""
    gpu = spans.gpu
    energies = meters.over(gpu, spans.began, spans.ended)
    lasted_ns = np.minimum(spans.ended, meters["last_ns"][gpu]) - np.maximum(spans.began, meters["first_ns"][gpu])
    lasted_s, most_j = np.maximum(lasted_ns, 0) / 1e9, np.maximum(energies.energy_j, 0.0)
    idle_j, idle_low_j, idle_high_j = (
        np.minimum(watts[gpu] * lasted_s, most_j)  # never more than it drew
        for watts in (meters["idle_w"], meters["idle_low_w"], np.nan_to_num(meters["idle_high_w"], nan=_ANY_W))
    )
    return {
        "gpu": gpu, "began": spans.began, "ended": spans.ended,
        "energy_j": energies.energy_j, "below_j": energies.below_j, "above_j": energies.above_j,
        "variance_j2": energies.variance_j2, "sensed_j": energies.measured_j, "idle_j": idle_j,
        "idle_low_j": idle_low_j, "idle_high_j": idle_high_j, "measured_s": energies.measured_s,
        "counter_s": energies.counter_s, "reason": energies.reason,
    }  # fmt: skip


def _with_shares(holders: pl.DataFrame) -> pl.DataFrame:
    """With the share of the GPU that each holder has, its weight in what is above idle power, and of its span: how many
    hold it, what they hold together (asked; more than 1 where they overlap) and their weights together."""
    stated, active = pl.col("stated").fill_nan(None), pl.col("active").fill_nan(None)
    total, missing = stated.sum().over("span"), stated.null_count().over("span")
    part = pl.when(total < 1 - OVER).then((1 - total) / missing).otherwise(1 / pl.len().over("span"))
    holders = holders.with_columns(stated.fill_null(part).alias("share"), pl.len().over("span").alias("holders"))
    holders = holders.with_columns(pl.col("share").sum().over("span").alias("asked"))
    over = pl.col("asked") > 1 + OVER
    unknown = (active.null_count().over("span") > 0) | (active.sum().over("span") <= 0)
    holders = holders.with_columns(
        pl.when(over).then(pl.col("share") / pl.col("asked")).otherwise("share").alias("share")
    )
    holders = holders.with_columns((pl.col("share") * pl.when(unknown).then(1.0).otherwise(active)).alias("weight"))
    return holders.with_columns(pl.col("weight").sum().over("span").alias("weights"))


def _of_jobs(spans: pl.DataFrame, pieces: pl.DataFrame, holders: pl.DataFrame) -> pl.DataFrame:
    """The pieces of jobs: what each holder has of its spans, added up."""
    rows = spans[holders["span"]].hstack(holders)
    never, energy, share = pl.col("idle_j").is_nan(), pl.col("energy_j"), pl.col("share")
    base = pl.col("idle_j").fill_nan(0.0)
    above = (energy - base).clip(lower_bound=0) * pl.col("weight") / pl.col("weights")
    rows = rows.with_columns(
        # Where nobody knows what the rest of the GPU did, all goes by share.
        pl.when(never).then(energy * share).otherwise(base * share + above).alias("own_j"),
        ((pl.col("ended") - pl.col("began")) / 1e9).alias("lasted_s"),
    )
    part = pl.when(energy > 0).then(pl.col("own_j") / energy).otherwise(share)
    high = pl.min_horizontal(pl.col("idle_high_j") * share, "own_j")
    sums = rows.select(
        "piece", "lasted_s", (share * pl.col("lasted_s")).alias("share"), pl.col("own_j").alias("energy_j"),
        *(pl.col(name) * part for name in _BY_ENERGY),
        *(high if name == "idle_high_j" else pl.col(name) * share for name in _BY_SHARE),
    ).group_by("piece", maintain_order=True).agg(pl.all().sum())  # fmt: skip
    pieces = pieces.with_row_index("piece").select(
        pl.col("piece").cast(pl.Int64), "gpu", "claim", "began", "ended", "reason",
        pl.col("energy_j").alias("whole_j"), pl.col("variance_j2").alias("whole_j2"),
    )  # fmt: skip
    # Many short times are not independent of each other: the variance is at least that of the whole time.
    of_whole = pl.when(pl.col("whole_j") > 0).then(pl.col("whole_j2") * pl.col("energy_j") / pl.col("whole_j"))
    pieces = pieces.join(sums, on="piece", how="left", maintain_order="left").with_columns(
        (pl.col("share") / pl.col("lasted_s")).fill_null(1.0), pl.col(_FIGURES).fill_null(0.0)
    )
    return pieces.select(
        "gpu", "claim", "began", "ended", "share", "reason", pl.lit(Kind.JOB.value).alias("kind"),
        *(pl.max_horizontal(name, of_whole) if name == "variance_j2" else pl.col(name) for name in _FIGURES),
    )  # fmt: skip


def _of_nobody(spans: pl.DataFrame, holders: pl.DataFrame) -> pl.DataFrame:
    """The pieces of nobody: spans that nobody holds, and the share of others that nobody holds."""
    free = spans.filter(pl.col("kind") != "").with_columns(pl.lit(1.0).alias("share"))
    partly = holders.filter(pl.col("asked") < 1 - OVER).unique("span", maintain_order=True)
    shares = spans[partly["span"]].with_columns((1 - partly["asked"]).alias("share"))
    never, share = pl.col("idle_j").is_nan(), pl.col("share")
    free_j = pl.when(never).then("energy_j").otherwise("idle_j") * share
    part = pl.when(pl.col("energy_j") > 0).then(free_j / pl.col("energy_j")).otherwise(share)
    shares = shares.with_columns(
        pl.when(never).then(pl.lit(Kind.UNATTRIBUTED.value)).otherwise(pl.lit(Kind.IDLE.value)).alias("kind"),
        free_j.alias("energy_j"),
        *(pl.col(name) * part for name in _BY_ENERGY),
        *(pl.col(name) * share for name in _BY_SHARE),
    ).with_columns(pl.min_horizontal("idle_high_j", "energy_j").alias("idle_high_j"))
    return pl.concat([free, shares])


def _finished(rows: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Rows with `_FIGURES`, times in ns and the row of a claim (NULL: of nobody) as pieces: columns of `PIECES`."""
    counter = (
        pl.when(pl.col("counter_s") * 2 >= pl.col("measured_s")).then(pl.lit("counter")).otherwise(pl.lit("power"))
    )
    return rows.with_columns(
        times_of_ns(pl.col("began", "ended")),
        jobs["allocation"].gather(rows["claim"]).alias("allocation"),
        pl.col(_FIGURES).fill_nan(None),
        pl.when(pl.col("reason") != "").then("reason").alias("reason"),
        pl.when(pl.col("measured_s") > 0).then(counter).alias("method"),
        pl.col("measured_s").alias("sensed_s"),
    ).select(pl.col(name).cast(kind) for name, kind in PIECES.items())


def _most_j(unattributed: pl.DataFrame | None, since: Times, until: Times) -> Floats:
    """The most that pieces of nobody were within each time (ns); they begin and end where these times do."""
    if unattributed is None:
        return np.full(len(since), np.nan)
    joules = unattributed.select(pl.col("energy_j") + pl.col("above_j")).to_series().to_numpy()
    began, ended = (unattributed[name].dt.epoch("us").to_numpy() for name in ("began", "ended"))
    order, back = np.argsort(began), np.argsort(ended)
    to_begin, to_end = (np.concatenate([[0.0], np.cumsum(joules[places])]) for places in (order, back))
    started = np.searchsorted(began[order], until // 1000, "left")
    stopped = np.searchsorted(ended[back], since // 1000, "right")
    most: Floats = np.maximum(to_begin[started] - to_end[stopped], 0.0)
    return most


def _unmetered(unread: pl.DataFrame, metered: pl.DataFrame) -> pl.DataFrame:
    """Rows as `metered` has them, without energy, of GPUs that could not be read at any time."""
    rows = unread.join(metered, on=_KEYS, how="anti", nulls_equal=True).group_by(_KEYS, maintain_order=True).agg(
        pl.col("node", "limit_w").first(), times_of_ns(pl.col("began").min()).alias("first"),
        times_of_ns(pl.col("ended").max()).alias("last"), metered_j=0.0, idle_source=pl.lit(IdleSource.UNKNOWN.value),
        power_source=pl.lit(PowerSource.POWER.value),
    )  # fmt: skip
    absent = (pl.lit(None).alias(name) for name in _METERED if name not in rows.columns)
    return rows.with_columns(absent).select(pl.col(name).cast(kind) for name, kind in _METERED.items())
