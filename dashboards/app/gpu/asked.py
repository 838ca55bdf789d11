"""Which GPU an address asks for, and what is known of it: each part is read once, and kept until the store changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from ....analysis.choosing import known_gpus, meant
from ....analysis.one_gpu import happened, standing
from ....analysis.one_gpu.found import Found, Named, found, last_judgement, named, runs_of_cluster
from ....analysis.one_gpu.past import Line, past
from ....analysis.one_gpu.peers import beside
from ....analysis.one_gpu.reasons import Reasons, reasons
from ....analysis.one_gpu.runs import days_of, kinds_of, own_runs, peers_runs, timed

if TYPE_CHECKING:
    from ....analysis.one_gpu.standing import Figures, Standing
    from ....analysis.verdicts.alike import Neighbour
    from ..reading import Reading
    from ..state import State

T = TypeVar("T")
Row = Mapping[str, Any]
_FIGURES = ("fingerprints", "runs")
_RUNS = ("gpus", "runs", "results", "fingerprints")


def known(reading: Reading) -> pl.DataFrame:
    """The GPUs of the store."""
    return reading.answer(known_gpus, tables=("gpus",))


def row_of(reading: Reading, state: State) -> Row | None:
    """The GPU of an address; None where it names none. InputError where it means none of the store, or several."""
    if not state.gpu:
        return None
    said, cluster = state.gpu[0], state.cluster
    make = lambda: meant(known(reading), said, cluster, "this store")  # noqa: E731
    return reading.kept(("meant", said, cluster), make, tables=("gpus",))


def named_first(reading: Reading) -> Sequence[Named]:
    """The GPUs with findings, the worst first."""
    return reading.answer(named, tables=("judgements", "verdicts"))


def figures(reading: Reading, row: Row) -> Figures | None:
    """The fingerprints of its cluster."""
    return reading.answer(standing.figures, row["cluster"], tables=_FIGURES)


def stands(reading: Reading, row: Row) -> Sequence[Standing]:
    """Its figures beside its peers."""
    of = figures(reading, row)
    if of is None:
        return ()
    return _kept(reading, "stands", row, lambda: standing.standings(reading.store, of, row["gpu"]), _FIGURES)


def alike(reading: Reading, row: Row) -> Sequence[Neighbour]:
    """The GPUs that are most like it."""
    of = figures(reading, row)
    if of is None:
        return ()
    every = reading.kept(("alike", row["cluster"]), lambda: standing.alike(reading.store, of), tables=_FIGURES)
    names = reading.kept(("names", row["cluster"]), lambda: _names(reading, row["cluster"]), tables=("gpus",))
    return standing.neighbours(every, row["gpu"], names)


def _names(reading: Reading, cluster: str | None) -> dict[str, str]:
    """The names of the GPUs of a cluster, by key."""
    return dict(known(reading).filter(pl.col("cluster") == cluster).select("gpu", "name").iter_rows())


def runs(reading: Reading, row: Row) -> pl.DataFrame:
    """Its runs."""
    own = stands(reading, row)
    return _kept(reading, "runs", row, lambda: own_runs(reading.store, row["cluster"], row["keys"], own), _RUNS)


def lines(reading: Reading, row: Row) -> Sequence[Line]:
    """Its past, by workload."""

    def make() -> Sequence[Line]:
        mine = timed(runs(reading, row))
        kinds, days = kinds_of(mine), days_of(mine)
        of = row["cluster"], row["model"], kinds, days
        read = lambda: peers_runs(reading.store, row["cluster"], known(reading), row["model"], kinds, days)  # noqa: E731
        peers = reading.kept(("peers", *of), read, tables=_RUNS)
        if peers["gpu"].is_in(list(row["keys"])).any():
            others = beside(peers, row["keys"])
        else:
            others = reading.kept(("beside", *of), lambda: beside(peers), tables=_RUNS)
        return past(mine, others, stands(reading, row))

    return _kept(reading, "lines", row, make, _RUNS)


def judged(reading: Reading, row: Row) -> Found | None:
    """What the newest judgement says of it; None where its cluster was never judged."""
    of = reading.answer(last_judgement, row["cluster"], tables=("judgements", "verdicts"))
    if of is None:
        return None
    count = reading.answer(runs_of_cluster, row["cluster"], tables=("runs",))
    workloads = {one.workload for one in standing.times(stands(reading, row)) if one.workload}
    return found(of, row, workloads, count)


def marks(reading: Reading, row: Row) -> Sequence[happened.Mark]:
    """What may have changed it."""
    make = lambda: happened.marks(reading.store, row["cluster"], row["keys"], row["node"])  # noqa: E731
    return _kept(reading, "marks", row, make, ("gpus", "events"))


def events(reading: Reading, row: Row) -> Sequence[happened.Happened]:
    """Its events."""
    make = lambda: happened.events(reading.store, row["cluster"], row["keys"], row["node"])  # noqa: E731
    return _kept(reading, "events", row, make, ("events",))


def held(reading: Reading, row: Row, state: State) -> Reasons | None:
    """Why its clock was held; telemetry is never kept, as it comes all the time."""
    return reasons(reading.store, row["cluster"], row["keys"], state.since, state.until)


def ahead(reading: Reading) -> Iterator[Callable[[], object]]:
    """What the page reads of the worst GPU: most of it is the same for every other."""
    yield partial(known, reading)
    first = named_first(reading)
    row = meant(known(reading), first[0].gpu, first[0].cluster, "this store") if first else None
    if row is not None:
        yield from (partial(part, reading, row) for part in (figures, stands, runs, judged, lines, alike))


def _kept(reading: Reading, part: str, row: Row, make: Callable[[], T], tables: Sequence[str]) -> T:
    return reading.kept((part, row["cluster"], row["gpu"]), make, tables=tables)
