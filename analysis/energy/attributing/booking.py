"""The books: every metered joule in the pieces of a job, of nobody (idle) or of somebody unknown (unattributed)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..metering import Meter, Problem, Reason, meters
from ..metering.readings import Floats, Times
from ..pieces import SCHEMA, Kind
from . import problems
from .activities import Activities
from .claims import OPEN, Fleet, Ints, Key, column, read_claims
from .problems import Finding, JobProblem, JobReason
from .splitting import (
    ABOVE,
    BELOW,
    COUNTER,
    ENERGY,
    IDLE_J,
    JOB,
    MEASURED,
    SENSED,
    UNATTRIBUTED,
    VARIANCE,
    Crowd,
    Crowding,
    Shreds,
    clipped,
    split,
)  # fmt: skip

if TYPE_CHECKING:
    from ....store import Store

_KINDS = (Kind.JOB.value, Kind.IDLE.value, Kind.UNATTRIBUTED.value)
_PAIRS = 100  # of claims of one GPU, of which each has a row of problems
_ROWS = 100_000  # of a frame of pieces, about

METERED: dict[str, pl.DataType] = {
    "cluster": pl.String(),
    "gpu": pl.String(),
    "node": pl.String(),
    "first": pl.Datetime("ns"),
    "last": pl.Datetime("ns"),
    "metered_j": pl.Float64(),
    "idle_w": pl.Float64(),
    "limit_w": pl.Float64(),
}
"""The columns of `Books.metered`: a row for each GPU with readings, with its energy from the first to the last one."""


@dataclass(frozen=True)
class Books:
    """The energy of a store's GPUs: all pieces, what was metered, and what is wrong."""

    pieces: pl.DataFrame
    metered: pl.DataFrame
    problems: pl.DataFrame


def books(
    store: Store,
    *,
    cuts: Sequence[int] = (),
    since_ns: int | None = None,
    until_ns: int | None = None,
    cluster: str | None = None,
    gpus: Collection[tuple[str, str]] | None = None,
) -> Books:
    """The books of a store from `since_ns` to `until_ns` (UTC; None: all telemetry). Raises StoreError.

    `cuts` are times (ns, UTC) at which every piece ends.
    """
    read = meters(store, cluster=cluster, gpus=gpus, since_ns=since_ns, until_ns=until_ns)
    booking = Booking(store, cuts=cuts, since_ns=since_ns, until_ns=until_ns, cluster=cluster, gpus=gpus)
    frames = list(booking.pieces(read))
    empty = pl.DataFrame(schema=SCHEMA)
    return Books(pl.concat([empty, *frames], rechunk=False), booking.metered, booking.problems)


class Booking:
    """The making of the books, some GPUs at a time; `metered` and `problems` are whole when `pieces` has ended."""

    def __init__(
        self,
        store: Store,
        *,
        cuts: Sequence[int] = (),
        since_ns: int | None = None,
        until_ns: int | None = None,
        cluster: str | None = None,
        gpus: Collection[tuple[str, str]] | None = None,
    ) -> None:
        self._cuts = np.unique(np.asarray(cuts, np.int64))
        self._since, self._until = since_ns, until_ns
        self._only = None if gpus is None else set(gpus)
        self._fleet = Fleet.read(store, self._only)
        self._claims = read_claims(
            store, self._fleet, since_ns=since_ns, until_ns=until_ns, cluster=cluster, gpus=self._only
        )
        self._active = Activities(store, self._claims, self._fleet, since_ns, until_ns) if self._fleet.parent else None
        self._met: set[Key] = set()
        self._metered: list[tuple[str | None, str, str | None, int, int, float, float | None, float | None]] = []
        self._findings = problems.refused(store, cluster, since_ns, until_ns)
        self._unattributed: dict[Key, list[tuple[Times, Times, Floats]]] = defaultdict(list)
        self._seen_to: dict[Key, int] = {}  # the last reading of any GPU of a node
        self._made: list[tuple[Key, str | None, Shreds]] = []  # pieces that are in no frame yet
        self._rows = 0

    @property
    def metered(self) -> pl.DataFrame:
        """What each GPU's meter has, by cluster and GPU."""
        schema = {**METERED, "first": pl.Int64(), "last": pl.Int64()}
        rows = pl.DataFrame(self._metered, schema=schema, orient="row")
        return rows.with_columns(pl.col("first", "last").cast(pl.Datetime("ns"))).sort("cluster", "gpu")

    @property
    def problems(self) -> pl.DataFrame:
        """What is wrong: columns of `problems.SCHEMA`."""
        return problems.frame(self._findings)

    def pieces(self, read: Iterable[Meter]) -> Iterator[pl.DataFrame]:
        """The pieces of all GPUs, some GPUs at a time: frames with the columns of `pieces.SCHEMA`.

        `read` are the meters of the same time, cluster and GPUs. The last frame has the jobs whose GPU nobody knows or
        read.
        """
        for meter in read:
            yield from self.add(meter)
        yield from self.rest()

    def add(self, meter: Meter) -> Iterator[pl.DataFrame]:
        """Book a GPU; the pieces of it and of those before it, once there are enough of them."""
        shreds = self._of(meter)
        self._made.append(shreds)
        self._rows += len(shreds[2])
        if self._rows >= _ROWS:
            yield self._taken()

    def rest(self) -> Iterator[pl.DataFrame]:
        """The pieces that are left when all GPUs were added, then the jobs whose GPU nobody knows or read."""
        if self._made:
            yield self._taken()
        rest = [*self._unread(), *self._unknown(), *self._backward()]
        if rest:
            yield self._frame(rest)

    def _taken(self) -> pl.DataFrame:
        made, self._made, self._rows = self._made, [], 0
        return self._frame(made)

    # -- a GPU with a meter ---------------------------------------------------------------------------------

    def _of(self, meter: Meter) -> tuple[Key, str | None, Shreds]:
        key = meter.cluster, meter.gpu
        self._met.add(key)
        rows = self._claims.of_gpu.get(key, range(0))
        node = self._node(key, rows)
        shreds, crowds = split(
            meter,
            self._claims,
            rows,
            cuts=self._cuts,
            since_ns=self._since,
            until_ns=self._until,
            unknown=self._not_known(meter, node),
            activity=self._active if len(rows) > 1 else None,
        )
        ends = self._ends(meter.first_ns, meter.last_ns)
        self._metered.append((*key, node, *ends, meter.joules(*ends), meter.idle_w, meter.limit_w))
        if node is not None:
            place = meter.cluster, node
            self._seen_to[place] = max(self._seen_to.get(place, meter.last_ns), meter.last_ns)
            if place in self._claims.of_node:
                of = shreds.kind == UNATTRIBUTED
                most = shreds.figures[ENERGY, of] + shreds.figures[ABOVE, of]
                self._unattributed[place].append((shreds.began[of], shreds.ended[of], most))
        self._findings += [problems.of_note(note, *key, node) for note in meter.notes]
        for what, problem in _PROBLEMS.items():
            self._crowded(problem, [crowd for crowd in crowds if crowd.what is what])
        for note in meter.notes:
            if note.problem == Problem.DRIVER_RELOAD:
                self._reloaded(rows, note.began_ns, note.ended_ns)
        return key, node, shreds

    def _crowded(self, problem: JobProblem, crowds: list[Crowd]) -> None:
        """A row for each pair of claims of a GPU; one row, with the first pair, where they are very many."""
        if len(crowds) > _PAIRS:
            first, began, ended = crowds[0], min(one.began_ns for one in crowds), max(one.ended_ns for one in crowds)
            self._find(problem, first.claim, began, ended, other=first.other, n=len(crowds))
            return
        for one in crowds:
            self._find(problem, one.claim, one.began_ns, one.ended_ns, other=one.other, joules=one.joules)

    def _ends(self, first: int, last: int) -> tuple[int, int]:
        first = first if self._since is None else max(first, self._since)
        return first, max(first, last if self._until is None else min(last, self._until))

    def _node(self, key: Key, rows: range) -> str | None:
        node = self._fleet.node.get(key)
        return node if node is not None or not rows else self._claims.frame["node"][rows.start]

    def _not_known(self, meter: Meter, node: str | None) -> tuple[Times, Times] | None:
        rows = self._claims.of_node.get((meter.cluster, node)) if node is not None else None
        if rows is None:
            return None
        _, began, ended = clipped(self._claims, rows, meter.last_ns, self._since, self._until)
        return np.sort(began), np.sort(ended)

    def _reloaded(self, rows: range, began: int, ended: int) -> None:
        own = np.arange(rows.start, rows.stop)
        to = self._claims.ended[own]
        touched = (self._claims.began[own] < max(ended, began + 1)) & ((to > began) | (to == OPEN))
        for row in own[touched].tolist():
            self._find(JobProblem.RELOAD, row, began, ended)

    # -- jobs that no meter covers ----------------------------------------------------------------------------

    def _unread(self) -> Iterator[tuple[Key, str | None, Shreds]]:
        """Jobs on GPUs without readings: bounded by the power limit, where that is known."""
        for key, rows in self._claims.of_gpu.items():
            if key in self._met or (self._only is not None and key not in self._only):
                continue
            own, began, ended = clipped(self._claims, np.arange(rows.start, rows.stop), None, self._since, self._until)
            if len(own):
                known = key in self._fleet.node
                self._find_all(JobProblem.NO_TELEMETRY if known else JobProblem.UNKNOWN_GPU, own, began, ended)
                share = np.nan_to_num(self._claims.share[own], nan=1.0)
                limit = self._fleet.limit_w.get(key, np.nan)
                row, began, ended = _cut(began, ended, self._cuts)
                most = share[row] * limit * (ended - began) / 1e9
                yield key, self._node(key, rows), _blind(own[row], began, ended, share[row], most, Reason.NO_TELEMETRY)

    def _unknown(self) -> Iterator[tuple[Key, str | None, Shreds]]:
        """Jobs of which only the node is known: at most what is unattributed there meanwhile."""
        if self._only is not None:
            return
        counts = self._claims.frame["node_gpus"].fill_null(1).to_numpy().astype(float)
        for (cluster, node), rows in self._claims.of_node.items():
            place = cluster, node
            own, began, ended = clipped(self._claims, rows, self._seen_to.get(place), self._since, self._until)
            if len(own):
                self._find_all(JobProblem.GPU_NOT_KNOWN, own, began, ended)
                row, began, ended = _cut(began, ended, self._cuts)
                most = _most(self._unattributed.get(place, []), began, ended)
                share = counts[own[row]]
                yield (cluster, None), node, _blind(own[row], began, ended, share, most, JobReason.GPU_NOT_KNOWN)

    def _backward(self) -> Iterator[tuple[Key, str | None, Shreds]]:
        for row in self._claims.backward.tolist():
            cluster, gpu, node = (self._claims.frame[name][row] for name in ("cluster", "gpu", "node"))
            if self._only is None or (cluster, gpu) in self._only:
                began, nothing = self._claims.began[row : row + 1], np.full(1, np.nan)
                self._find(JobProblem.BACKWARD, row)
                shreds = _blind(np.array([row]), began, began, np.ones(1), nothing, JobReason.BACKWARD)
                yield (cluster, gpu), node, shreds

    # -- rows -------------------------------------------------------------------------------------------------

    def _find(
        self, problem: JobProblem, claim: int, began: int | None = None, ended: int | None = None, *,
        other: int | None = None, joules: float | None = None, n: int = 1,
    ) -> None:  # fmt: skip
        row = self._claims.frame.row(claim, named=True)
        than = {} if other is None else self._claims.frame.row(other, named=True)
        to = int(self._claims.ended[claim])
        self._findings.append(
            Finding(
                row["cluster"],
                row["gpu"],
                row["node"],
                problem,
                int(self._claims.began[claim]) if began is None else began,
                (None if to == OPEN else to) if ended is None else ended,
                row["allocation"],
                row["job_id"],
                than.get("allocation"),
                than.get("job_id"),
                joules,
                n=n,
            )
        )

    def _find_all(self, problem: JobProblem, rows: Ints, began: Times, ended: Times) -> None:
        """One row for a problem that many jobs share; it names the first."""
        self._find(problem, int(rows[0]), int(began.min()), int(ended.max()), n=len(rows))

    def _frame(self, made: list[tuple[Key, str | None, Shreds]]) -> pl.DataFrame:
        lengths = [len(shreds) for _, _, shreds in made]
        of = np.repeat(np.arange(len(made)), lengths)
        names = pl.DataFrame(
            [(*key, node) for key, node, _ in made],
            schema={name: SCHEMA[name] for name in ("cluster", "gpu", "node")},
            orient="row",
        )

        def whole(name: str) -> NDArray[np.generic]:
            return np.concatenate([getattr(shreds, name) for _, _, shreds in made], axis=-1)

        claim, figures = whole("claim").astype(np.int64), whole("figures").astype(np.float64)
        frame = names[of].with_columns(
            pl.Series("began", whole("began"), pl.Int64).cast(pl.Datetime("ns")),
            pl.Series("ended", whole("ended"), pl.Int64).cast(pl.Datetime("ns")),
            pl.Series("kind", list(_KINDS))[whole("kind").astype(np.int64)].alias("kind"),
            column(self._claims.frame, "allocation", claim).alias("allocation"),
            pl.Series("share", whole("share")),
            *(pl.Series(name, figures[row]).fill_nan(None) for name, row in _FIGURES.items()),
            pl.Series("counter_s", figures[COUNTER]),
            pl.Series("reason", whole("reason").astype(np.str_), pl.String),
        )
        honest = pl.col("reason") == ""
        method = pl.when(pl.col("counter_s") * 2 >= pl.col("measured_s")).then(pl.lit("counter"))
        return frame.with_columns(
            pl.when(pl.col("measured_s") > 0).then(method.otherwise(pl.lit("power"))).alias("method"),
            pl.when(~honest).then("reason").alias("reason"),
            pl.col("measured_s").alias("sensed_s"),
        ).select(list(SCHEMA))


_PROBLEMS = {
    Crowding.MORE_THAN_ALL: JobProblem.OVERLAP,
    Crowding.NO_SHARES: JobProblem.OVERLAP_NO_SHARES,
    Crowding.ONE_SHARE_MISSING: JobProblem.SHARE_NOT_KNOWN,
}

_FIGURES = {
    "energy_j": ENERGY, "idle_j": IDLE_J, "below_j": BELOW, "above_j": ABOVE, "variance_j2": VARIANCE,
    "sensed_j": SENSED, "measured_s": MEASURED,
}  # fmt: skip


def _cut(began: Times, ended: Times, cuts: Times) -> tuple[Ints, Times, Times]:
    """Times cut apart at `cuts` (sorted): which time each part is of, and its begin and end."""
    first, last = np.searchsorted(cuts, began, "right"), np.searchsorted(cuts, ended, "left")
    parts = np.maximum(last - first, 0) + 1
    row = np.repeat(np.arange(len(began)), parts)
    number = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
    padded = np.append(cuts, np.int64(0))
    begins = np.where(number == 0, began[row], padded[first[row] + number - 1])
    ends = np.where(number == parts[row] - 1, ended[row], padded[np.minimum(first[row] + number, len(cuts))])
    return row, begins, ends


def _blind(claim: Ints, began: Times, ended: Times, share: Floats, most: Floats, reason: str) -> Shreds:
    """Pieces of jobs without a meter: 0 J, and at most `most` more; unknown where that is NaN. No time, no energy."""
    figures = np.zeros((8, len(claim)))
    lasts = ended > began
    most = np.where(lasts, most, 0.0)
    figures[IDLE_J] = np.where(lasts, np.nan, 0.0)
    figures[ABOVE] = np.nan_to_num(most)
    figures[ENERGY] = np.where(np.isnan(most), np.nan, 0.0)
    return Shreds(
        np.full(len(claim), JOB, np.int8), claim, began, ended, share, figures, np.full(len(claim), str(reason))
    )


def _most(parts: list[tuple[Times, Times, Floats]], since: Times, until: Times) -> Floats:
    """The sum of the `parts` (begin, end, J) within each time; they begin and end where these times do."""
    if not parts:
        return np.full(len(since), np.nan)
    began, ended, joules = (np.concatenate(one) for one in zip(*parts, strict=True))
    order, back = np.argsort(began), np.argsort(ended)
    to_begin, to_end = (np.concatenate([[0.0], np.cumsum(joules[one])]) for one in (order, back))
    started = np.searchsorted(began[order], until, "left")
    stopped = np.searchsorted(ended[back], since, "right")
    found: Floats = np.maximum(to_begin[started] - to_end[stopped], 0.0)
    return found
