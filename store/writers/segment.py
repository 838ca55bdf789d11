"""The telemetry of a journal as sorted files, written a few GPUs at a time, so that memory does not grow with it.

The rows come from the published files of the journal, and those that are not published yet from memory. All of these
are sorted by GPU and time. So the rows of a few GPUs are a piece of each, and the pieces in a row are the next piece
of the segment.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..rows import arranging, journal_file, placing, writing
from ..rows.footers import footer
from ..rows.journal_file import WRITTEN
from ..rows.placing import Bounds
from ..schema import TELEMETRY, arrow_schema
from ..system import light
from ..system.files import remove, temporary_name
from ..system.memory import give_back
from . import rivals

if TYPE_CHECKING:
    import pyarrow as pa

Gpu = tuple[str | None, str | None]  # cluster and gpu

_ROWS = 10_000  # at once: some 4 MB, and as much again to write them; a GPU that has more is written alone


class UnreadableError(Exception):
    """A published file cannot be read. Its rows are in the journal, too."""


def read(path: Path, columns: list[str] | None = None) -> pa.Table:
    """The rows of a published file. Raises UnreadableError."""
    return _read(light.read, path, columns)


def _read(how: Callable[..., Any], path: Path, *arguments: Any) -> Any:
    import pyarrow as pa

    try:
        return how(path, *arguments)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise UnreadableError(path) from error


class Source:
    """Sorted rows of telemetry: a published file, or a table."""

    def __init__(self, of: Path | pa.Table) -> None:
        self._of = of
        keys = self.read(["cluster", "gpu"])
        ends = (placing.ends_of_gpus(keys) + 1).tolist()
        last = arranging.take(keys, placing.ends_of_gpus(keys))
        gpus: list[Gpu] = list(zip(last["cluster"].to_pylist(), last["gpu"].to_pylist(), strict=True))
        self.rows = dict(zip(gpus, zip([0, *ends], ends, strict=False), strict=True))

    def read(self, columns: list[str] | None = None) -> pa.Table:
        """All rows. Raises UnreadableError."""
        if isinstance(self._of, Path):
            return read(self._of, columns)
        return self._of if columns is None else self._of.select(columns)

    @property
    def columns(self) -> set[str]:
        """The columns that hold more than NULL."""
        if isinstance(self._of, Path):
            return set(_read(footer, self._of).shape.schema.names)
        return {name for name in self._of.column_names if self._of[name].null_count < len(self._of)}

    @property
    def bounds(self) -> Bounds:
        if not isinstance(self._of, Path):
            return placing.bounds_of(self._of)
        found = placing.bounds(self._of)
        if found is None:
            raise UnreadableError(self._of)
        return found


def _groups(sources: list[Source]) -> Iterator[list[Gpu]]:
    """The GPUs in the order of the table, those together that may be in memory at once."""
    rows: dict[Gpu, int] = {}
    for source in sources:
        for gpu, (begin, end) in source.rows.items():
            rows[gpu] = rows.get(gpu, 0) + end - begin
    group: list[Gpu] = []
    for gpu in sorted(rows, key=lambda one: [(name is None, (name or "").encode()) for name in one[::-1]]):
        if group and sum(rows[one] for one in group) + rows[gpu] > _ROWS:
            yield group
            group = []
        group.append(gpu)
    yield group


def _gathered(sources: list[Source], gpus: list[Gpu], *, alone: bool) -> pa.Table:
    """The rows of these GPUs, GPU by GPU. If not `alone`, they are copies: the other rows of a file can go."""
    import pyarrow as pa

    pieces: dict[Gpu, list[pa.Table]] = {gpu: [] for gpu in gpus}
    for source in sources:
        here = [gpu for gpu in gpus if gpu in source.rows]
        if not here:
            continue
        data = journal_file.with_written(source.read())
        for gpu in here:
            begin, end = source.rows[gpu]
            piece = data.slice(begin, end - begin)
            pieces[gpu].append(piece if alone else _copied(piece))
    every = [piece.replace_schema_metadata() for gpu in gpus for piece in pieces[gpu]]
    return pa.concat_tables(every, promote_options="default")


def _copied(rows: pa.Table) -> pa.Table:
    """A copy in one piece of memory. A piece for each column, among what comes and goes, would break up the memory."""
    import pyarrow as pa

    schema = rows.schema
    batches = [pa.ipc.read_record_batch(batch.serialize(), schema) for batch in rows.to_batches()]
    return pa.Table.from_batches(batches, schema)


class Segment:
    """Writes sources as files of the store: `moves` maps their temporary names to their places.

    Rows that replace those of other files are in `late`; `last` is the last reading of each GPU. Files whose names
    match `mine` count as replaced. The caller holds the lock of places.
    """

    def __init__(self, root: Path, name: str, sources: list[Source], mine: set[str], generation: str) -> None:
        import pyarrow as pa

        self.moves: dict[Path, Path] = {}
        self._root, self._name = root, name
        self._writer = journal_file.name_in(generation)
        self._bounds = placing.union([source.bounds for source in sources])
        keep_written = bool(rivals.open_journals(root, self._bounds, generation))
        known = set(arranging.KEY).union(*(source.columns for source in sources))
        full = arrow_schema(TELEMETRY.name)
        fields = [full.field(column) for column in full.names if column in known and column != WRITTEN]
        fields += [pa.field(WRITTEN, pa.int64())] * keep_written
        self._schema = pa.schema(fields, full.metadata)
        self._open: dict[str, tuple[Callable[[pa.Table], None], list[Bounds]]] = {}
        late, last = [], []
        groups = list(_groups(sources))
        try:
            with contextlib.ExitStack() as stack:
                for group in groups:
                    if len(groups) > 1:
                        give_back()
                    rows = _gathered(sources, group, alone=len(groups) == 1)
                    superseding, newest = self._take(stack, rows, mine)
                    late.append(superseding)
                    last.append(newest)
                    del rows  # before the next ones come
        except BaseException:
            for temporary in self.moves:
                remove(temporary)
            raise
        self.late = pa.concat_tables(late, promote_options="default")
        self.last = pa.concat_tables(last, promote_options="default")

    def _take(self, stack: contextlib.ExitStack, rows: pa.Table, mine: set[str]) -> tuple[pa.Table, pa.Table]:
        """Write the rows of some GPUs; returns those that replace others, and the last of each GPU."""
        rows = placing.newest(rows)
        new, late = rivals.split(self._root, rows, mine)
        for day, part in arranging.days(new):
            self._add(stack, day, part)
        return (late if len(late) else late.schema.empty_table()), placing.last_rows(rows)

    def _add(self, stack: contextlib.ExitStack, day: str, rows: pa.Table) -> None:
        import pyarrow as pa

        if day not in self._open:
            home = rivals.home(self._root, self._writer, self._bounds.gpus, [day])
            final = self._root / TELEMETRY.name / f"day={day}" / home / f"{self._name}.parquet"
            temporary = temporary_name(final)
            self.moves[temporary] = final
            seen: list[Bounds] = []
            write = stack.enter_context(
                writing.growing(
                    temporary, TELEMETRY, self._schema,
                    metadata=lambda: placing.as_metadata(placing.union(seen)),
                )
            )  # fmt: skip
            self._open[day] = write, seen
        write, seen = self._open[day]
        seen.append(placing.bounds_of(rows))
        columns = [
            rows[field.name] if field.name in rows.column_names else pa.nulls(len(rows), field.type)
            for field in self._schema
        ]
        write(pa.table(columns, schema=self._schema))
