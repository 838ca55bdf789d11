"""Which GPU an address asks for, and what is known of it: each part is read once, and kept until the store changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from ....analysis.choosing import known_gpus, meant
from ....analysis.one_gpu import happened, standing
from ....analysis.one_gpu.found import Found, Named, named
from ....analysis.one_gpu.past import Compared, Line
from ....analysis.one_gpu.reasons import Reasons, reasons
from ....analysis.one_gpu.runs import own_runs, timed
from ....analysis.verdicts.judgements import StoredJudgement, made_judgement, stored

if TYPE_CHECKING:
    from ....analysis.one_gpu.standing import Figures, Standing
    from ....analysis.verdicts.fingerprint import Neighbour
    from ....store import Store
    from ..reading import Reading
    from ..state import State

T = TypeVar("T")
Row = Mapping[str, Any]
_FIGURES = ("fingerprints", "runs")
_JUDGED = ("judgements", "verdicts", "levels", "day_levels")
_RUNS = ("gpus", "runs", "results", *_JUDGED)


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
    names = set(compared(reading, row).levels["workload"])
    make = lambda: own_runs(reading.store, row["cluster"], row["keys"], row["model"], workloads=names)  # noqa: E731
    return _kept(reading, "runs", row, make, _RUNS)


def _judgement(reading: Reading, row: Row) -> StoredJudgement | None:
    """The newest judgement of its cluster that is stored; None where it was never judged."""
    return reading.answer(_stored, row["cluster"], tables=_JUDGED)


def _stored(store: Store, cluster: str) -> StoredJudgement | None:
    return next(iter(stored(store, cluster)), None)


def _made(store: Store, cluster: str) -> StoredJudgement | None:
    """A judgement for the levels of a cluster that was never judged; None where it has many runs, which takes long."""
    runs = store.collect(store.scan("runs").filter(pl.col("cluster") == cluster).select(pl.len())).item()
    return made_judgement(store, cluster) if 0 < runs <= standing.COMPUTED_RUNS else None


def compared(reading: Reading, row: Row) -> Compared:
    """Its levels and those of its peers, as judged."""
    of = _judgement(reading, row)
    if of is None or not of.is_complete(reading.store):
        of = reading.answer(_made, row["cluster"], tables=(*_RUNS, "events"))
    make = lambda: Compared.read(reading.store, of, row["keys"], peers=True)  # noqa: E731
    return _kept(reading, "compared", row, make, _RUNS)


def lines(reading: Reading, row: Row) -> Sequence[Line]:
    """Its past, by workload."""
    make = lambda: compared(reading, row).lines(timed(runs(reading, row)))  # noqa: E731
    return _kept(reading, "lines", row, make, (*_RUNS, *_JUDGED))


def judged(reading: Reading, row: Row) -> Found | None:
    """What the newest judgement says of it; None where its cluster was never judged."""
    of = _judgement(reading, row)
    if of is None:
        return None
    newer = reading.kept(("newer", row["cluster"]), lambda: of.newer(reading.store), tables=("runs", *_JUDGED))
    return Found.of(of, row, set(compared(reading, row).levels["workload"]), newer)


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
