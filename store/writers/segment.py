"""The telemetry of a journal as sorted files, written some rows at a time, so that memory does not grow with it.

The rows come from the published files of the journal, and those that are not published yet from memory. All of these
are sorted by GPU and time. So the rows of a GPU are a piece of each. As a rule a file begins where the one before it
ended; then these pieces in a row are the next piece of the segment.
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

_ROWS = 3_500  # at once, 4 MB: ten minutes of a GPU at 5 Hz, and half of those at 10 Hz


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
        keys = self.read([*arranging.KEY])
        ts = arranging.numbers(keys["ts"])
        last = placing.ends_of_gpus(keys)
        ends = (last + 1).tolist()
        ending = arranging.take(keys, last)
        gpus: list[Gpu] = list(zip(ending["cluster"].to_pylist(), ending["gpu"].to_pylist(), strict=True))
        self.rows = dict(zip(gpus, zip([0, *ends], ends, strict=False), strict=True))
        self.times = {gpu: (int(ts[begin]), int(ts[end - 1])) for gpu, (begin, end) in self.rows.items()}  # ns

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


def _pieces(sources: list[Source]) -> Iterator[tuple[Gpu, list[Source]]]:
    """The rows of each GPU in the order of the table. One piece for sources whose times overlap: keys can be equal."""
    by_gpu: dict[Gpu, list[Source]] = {}
    for source in sources:
        for gpu in source.rows:
            by_gpu.setdefault(gpu, []).append(source)
    for gpu in sorted(by_gpu, key=lambda one: [(name is None, (name or "").encode()) for name in one[::-1]]):
        piece: list[Source] = []
        for source in sorted(by_gpu[gpu], key=lambda one: one.times[gpu]):
            if piece and source.times[gpu][0] > max(one.times[gpu][1] for one in piece):
                yield gpu, sorted(piece, key=sources.index)
                piece = []
            piece.append(source)
        yield gpu, sorted(piece, key=sources.index)


def _groups(sources: list[Source]) -> Iterator[list[tuple[Gpu, list[Source]]]]:
    """The pieces in order; those of a group are in memory at once."""
    group: list[tuple[Gpu, list[Source]]] = []
    size = 0
    for gpu, piece in _pieces(sources):
        rows = sum(end - begin for begin, end in (source.rows[gpu] for source in piece))
        if group and size + rows > _ROWS:
            yield group
            group, size = [], 0
        group.append((gpu, piece))
        size += rows
    yield group


def _gathered(group: list[tuple[Gpu, list[Source]]], *, alone: bool) -> pa.Table:
    """The rows of some pieces, in their order. If not `alone`, they are copies: the other rows of a file can go."""
    import pyarrow as pa

    wanted: dict[Source, list[int]] = {}  # each file is read once
    for place, (_, piece) in enumerate(group):
        for source in piece:
            wanted.setdefault(source, []).append(place)
    found: list[list[tuple[int, pa.Table]]] = [[] for _ in group]
    for source, places in wanted.items():
        data = journal_file.with_written(source.read())
        for place in places:
            gpu, piece = group[place]
            begin, end = source.rows[gpu]
            rows = data.slice(begin, end - begin)
            found[place].append((piece.index(source), rows if alone else _copied(rows)))
    every = [rows.replace_schema_metadata() for one in found for _, rows in sorted(one, key=lambda pair: pair[0])]
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
        self._late: list[pa.Table] = []
        self.last: pa.Table | None = None
        groups = list(_groups(sources))
        try:
            with contextlib.ExitStack() as stack:
                for group in groups:
                    if len(groups) > 1:
                        give_back()
                    self._take(stack, _gathered(group, alone=len(groups) == 1), mine)
        except BaseException:
            for temporary in self.moves:
                remove(temporary)
            raise
        self.late = pa.concat_tables(self._late, promote_options="default") if self._late else None

    def _take(self, stack: contextlib.ExitStack, rows: pa.Table, mine: set[str]) -> None:
        """Write some rows, but keep those that replace others and the last of each GPU."""
        import pyarrow as pa

        rows = placing.newest(rows)
        new, late = rivals.split(self._root, rows, mine)
        for day, part in arranging.days(new):
            self._add(stack, day, part)
        if len(late):
            self._late.append(late)
        last = [placing.last_rows(rows)]
        if self.last is not None:  # one GPU can be in both: its rows come in the order of time
            last.insert(0, self.last)
        self.last = placing.last_rows(pa.concat_tables(last, promote_options="default"))

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
