"""The books: every metered joule in the pieces of a job, of nobody (idle) or of somebody unknown (unattributed)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from ..meter import Meters
from ..series import Floats, Problem, Reason, Times
from . import problems
from .activities import Activities
from .claims import OPEN, Fleet, Ints, Key, clipped, read_claims
from .frames import Made, MeteredGpus, metered_frame, pieces_frame
from .moves import Moves
from .problems import Finding, JobProblem, JobReason, NodeNotes
from .shreds import ABOVE, ENERGY, IDLE_HIGH, IDLE_J, JOB, UNATTRIBUTED, Shreds
from .splitting import Crowd, Crowding, split

if TYPE_CHECKING:
    from ....store import Store

_PAIRS = 100  # of claims of one GPU, of which each has a row of problems
_ROWS = 100_000  # of a frame of pieces, about


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
        """The books of a store from `since_ns` to `until_ns` (UTC; None: all telemetry). Raises StoreError.

        `cuts` are times (ns, UTC) at which every piece ends.
        """
        self._since, self._until = since_ns, until_ns
        self._only = None if gpus is None else set(gpus)
        self._moves = Moves.read(store, self._only)
        self._store = store
        self._cuts = np.unique(np.asarray([*cuts, *self._moves.times], np.int64))
        self._fleet = Fleet.read(store, self._only)
        self._claims = read_claims(
            store, self._fleet, since_ns=since_ns, until_ns=until_ns, cluster=cluster, gpus=self._only
        )
        self._active = Activities(store, self._claims, self._fleet, since_ns, until_ns) if self._fleet.parent else None
        self._met: set[Key] = set()
        self._metered: list[MeteredGpus] = []
        self._findings = problems.refused(store, cluster, since_ns, until_ns)
        self._unattributed: dict[Key, list[tuple[Times, Times, Floats]]] = defaultdict(list)
        self._seen_to: dict[Key, int] = {}  # the last reading of any GPU of a node
        self._made: list[Made] = []  # pieces that are in no frame yet
        self._rows = 0
        self._notes: dict[Key, list[NodeNotes]] = {}  # by cluster and node: what meters found

    @property
    def metered(self) -> pl.DataFrame:
        """What each GPU's meter has, by cluster and GPU."""
        return metered_frame(self._metered)

    @property
    def problems(self) -> pl.DataFrame:
        """What is wrong: columns of `problems.SCHEMA`."""
        return problems.frame(self._findings)

    def pieces(self, read: Iterable[Meters]) -> Iterator[pl.DataFrame]:
        """The pieces of all GPUs, some GPUs at a time: frames with the columns of `pieces.SCHEMA`.

        `read` are the meters of the same time, cluster and GPUs. The last frame has the jobs whose GPU nobody knows or
        read.
        """
        for some in read:
            yield from self.add(some)
        yield from self.rest()

    def add(self, some: Meters) -> Iterator[pl.DataFrame]:
        """Book some GPUs; the pieces of them and of those before them, once there are enough of them."""
        made = self._of(some)
        self._made.append(made)
        self._rows += len(made.shreds)
        if self._rows >= _ROWS:
            yield self._taken()

    def rest(self) -> Iterator[pl.DataFrame]:
        """The pieces that are left when all GPUs were added, then the jobs whose GPU nobody knows or read."""
        if self._made:
            yield self._taken()
        for (_, node), of_node in self._notes.items():
            self._findings += problems.of_notes(of_node, node)
        self._notes.clear()
        self._findings += problems.twice(self._store, self.metered)
        rest = [*self._unread(), *self._unknown(), *self._backward()]
        if rest:
            yield self._moves.placed(pieces_frame(rest, self._claims))

    def _taken(self) -> pl.DataFrame:
        made, self._made, self._rows = self._made, [], 0
        return self._moves.placed(pieces_frame(made, self._claims))

    # -- GPUs with meters -----------------------------------------------------------------------------------

    def _of(self, some: Meters) -> Made:
        keys: list[Key] = list(some.gpus)
        self._met.update(keys)
        rows = [self._claims.of_gpu.get(key, range(0)) for key in keys]
        nodes = [self._node(key, own) for key, own in zip(keys, rows, strict=True)]
        shreds, crowds = split(
            some,
            self._claims,
            rows,
            cuts=self._cuts,
            since_ns=self._since,
            until_ns=self._until,
            unknown=self._not_known(some, nodes),
            activity=self._active,
        )
        self._meter(some, nodes)
        self._not_told(some, nodes, shreds)
        whose = dict[int, list[Crowd]]()
        if crowds:
            starts = {row: number for number, own in enumerate(rows) for row in own}
            for crowd in crowds:
                whose.setdefault(starts[crowd.claim], []).append(crowd)
        for number, (node, notes) in enumerate(zip(nodes, some.notes, strict=True)):
            self._notes.setdefault((some.gpus[number][0], node), []).append(
                NodeNotes(
                    some.gpus[number],
                    int(some.first_ns[number]),
                    int(some.last_ns[number]),
                    notes,
                    self._held(rows[number]),
                )
            )
            for what, problem in _PROBLEMS.items():
                self._crowded(problem, [crowd for crowd in whose.get(number, ()) if crowd.what is what])
            for note in notes:
                if note.problem == Problem.DRIVER_RELOAD:
                    self._reloaded(rows[number], note.began_ns, note.ended_ns)
        return Made(keys, nodes, shreds, some.idle_source)

    def _held(self, rows: range) -> tuple[Times, Times]:
        """When jobs began and ended that had a GPU; one that runs has it for ever."""
        own = np.arange(rows.start, rows.stop)
        ended = self._claims.ended[own]
        return self._claims.began[own], np.where(ended == OPEN, np.iinfo(np.int64).max, ended)

    def _meter(self, some: Meters, nodes: list[str | None]) -> None:
        """What the meter of each GPU has in the time that is asked for."""
        first = some.first_ns if self._since is None else np.maximum(some.first_ns, self._since)
        last = np.maximum(first, some.last_ns if self._until is None else np.minimum(some.last_ns, self._until))
        joules = some.joules(np.arange(len(some)), first, last)
        figures = joules, some.idle_w, some.idle_low_w, some.idle_high_w, some.limit_w
        self._metered.append(MeteredGpus(some, nodes, (first, last), figures))

    def _not_told(self, some: Meters, nodes: list[str | None], shreds: Shreds) -> None:
        """Keep what is unattributed on nodes of which jobs had GPUs that nobody knows."""
        for number, (key, now) in enumerate(zip(some.gpus, nodes, strict=True)):
            for node, since, until in self._moves.stays(key, now):
                place = key[0], node
                if node is None or place not in self._claims.of_node:
                    continue
                last = min(int(some.last_ns[number]), until)
                self._seen_to[place] = max(self._seen_to.get(place, last), last)
                of = (shreds.gpu == number) & (shreds.kind == UNATTRIBUTED)
                of &= (shreds.began >= since) & (shreds.began < until)
                most = shreds.figures[ENERGY, of] + shreds.figures[ABOVE, of]
                self._unattributed[place].append((shreds.began[of], shreds.ended[of], most))

    def _crowded(self, problem: JobProblem, crowds: list[Crowd]) -> None:
        """A row for each pair of claims of a GPU; one row, with the first pair, where they are very many."""
        if len(crowds) > _PAIRS:
            first, began, ended = crowds[0], min(one.began_ns for one in crowds), max(one.ended_ns for one in crowds)
            self._find(problem, first.claim, began, ended, other=first.other, n=len(crowds))
            return
        for one in crowds:
            self._find(problem, one.claim, one.began_ns, one.ended_ns, other=one.other, joules=one.joules)

    def _node(self, key: Key, rows: range) -> str | None:
        node = self._fleet.node.get(key)
        return node if node is not None or not rows else self._claims.frame["node"][rows.start]

    def _not_known(self, some: Meters, nodes: list[str | None]) -> dict[int, tuple[Times, Times]]:
        found = {}
        for number, (key, now) in enumerate(zip(some.gpus, nodes, strict=True)):
            times = []
            for node, since, until in self._moves.stays(key, now):
                rows = self._claims.of_node.get((key[0], node)) if node is not None else None
                if rows is not None:
                    low = since if self._since is None else max(since, self._since)
                    high = until if self._until is None else min(until, self._until)
                    times.append(clipped(self._claims, rows, int(some.last_ns[number]), low, high)[1:])
            if times:
                began, ended = (np.sort(np.concatenate(one)) for one in zip(*times, strict=True))
                found[number] = began, ended
        return found

    def _reloaded(self, rows: range, began: int, ended: int) -> None:
        own = np.arange(rows.start, rows.stop)
        to = self._claims.ended[own]
        touched = (self._claims.began[own] < max(ended, began + 1)) & ((to > began) | (to == OPEN))
        for row in own[touched].tolist():
            self._find(JobProblem.RELOAD, row, began, ended)

    # -- jobs that no meter covers ----------------------------------------------------------------------------

    def _unread(self) -> Iterator[Made]:
        """Jobs on GPUs without readings: bounded by the power limit, where that is known."""
        for key, rows in self._claims.of_gpu.items():
            if key in self._met or (self._only is not None and key not in self._only):
                continue
            own = np.arange(rows.start, rows.stop)
            inside, began, ended = clipped(self._claims, own, None, self._since, self._until)
            own = own[inside]
            if len(own):
                known = key in self._fleet.node
                self._find_all(JobProblem.NO_TELEMETRY if known else JobProblem.UNKNOWN_GPU, own, began, ended)
                share = np.nan_to_num(self._claims.share[own], nan=1.0)
                limit = self._fleet.limit_w.get(key, np.nan)
                row, began, ended = cut_apart(began, ended, self._cuts)
                most = share[row] * limit * (ended - began) / 1e9
                shreds = _blind(own[row], began, ended, share[row], most, Reason.NO_TELEMETRY)
                yield Made([key], [self._node(key, rows)], shreds)

    def _unknown(self) -> Iterator[Made]:
        """Jobs of which only the node is known: at most what is unattributed there meanwhile."""
        if self._only is not None:
            return
        counts = self._claims.frame["node_gpus"].fill_null(1).to_numpy().astype(float)
        for (cluster, node), rows in self._claims.of_node.items():
            place = cluster, node
            inside, began, ended = clipped(self._claims, rows, self._seen_to.get(place), self._since, self._until)
            own = rows[inside]
            if len(own):
                self._find_all(JobProblem.GPU_NOT_KNOWN, own, began, ended)
                row, began, ended = cut_apart(began, ended, self._cuts)
                most = _most(self._unattributed.get(place, []), began, ended)
                share = counts[own[row]]
                shreds = _blind(own[row], began, ended, share, most, JobReason.GPU_NOT_KNOWN)
                yield Made([(cluster, None)], [node], shreds)

    def _backward(self) -> Iterator[Made]:
        for row in self._claims.backward.tolist():
            cluster, gpu, node = (self._claims.frame[name][row] for name in ("cluster", "gpu", "node"))
            if self._only is None or (cluster, gpu) in self._only:
                began, nothing = self._claims.began[row : row + 1], np.full(1, np.nan)
                self._find(JobProblem.BACKWARD, row)
                shreds = _blind(np.array([row]), began, began, np.ones(1), nothing, JobReason.BACKWARD)
                yield Made([(cluster, gpu)], [node], shreds)

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


_PROBLEMS = {
    Crowding.MORE_THAN_ALL: JobProblem.OVERLAP,
    Crowding.NO_SHARES: JobProblem.OVERLAP_NO_SHARES,
    Crowding.ONE_SHARE_MISSING: JobProblem.SHARE_NOT_KNOWN,
}


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


def _blind(claim: Ints, began: Times, ended: Times, share: Floats, most: Floats, reason: str) -> Shreds:
    """Pieces of jobs without a meter: 0 J, and at most `most` more; unknown where that is NaN. No time, no energy."""
    figures = np.zeros((10, len(claim)))
    lasts = ended > began
    most = np.where(lasts, most, 0.0)
    figures[IDLE_J] = np.where(lasts, np.nan, 0.0)
    figures[ABOVE] = np.nan_to_num(most)
    figures[IDLE_HIGH] = most
    figures[ENERGY] = np.where(np.isnan(most), np.nan, 0.0)
    return Shreds(
        np.zeros(len(claim), np.int64),
        np.full(len(claim), JOB, np.int8),
        claim,
        began,
        ended,
        share,
        figures,
        np.full(len(claim), str(reason)),
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
