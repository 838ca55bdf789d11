"""The table `latest` as readers see it: of each GPU the last row of what its collector noted, published and wrote.

A collector of a large fleet has up to forty published files, and only the newest can matter, or none where its journal
goes on. So the files of each collector are taken from the newest to the oldest, and left out where all their GPUs have
newer rows already. What is read of a file is remembered, until the file changes.
"""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..rows import journal_file, placing
from ..rows.arranging import KEY, conform, gpu_codes, numbers
from ..rows.footers import stamp
from ..rows.soundness import undecodable
from ..schema import LATE, LATEST, TELEMETRY, arrow_schema
from ..system import light

if TYPE_CHECKING:
    import pyarrow as pa

    from .reading import Skip, Snapshot, Sound

Stamped = tuple[Path, tuple[int, int]]
_MOST = 4096  # files, some 10 kB each

_gpus: dict[Path, frozenset[int]] = {}  # of journals: their headers do not change


def latest(found: Snapshot, live: pa.Table | None, sound: Sound, skip: Skip) -> pa.Table:
    """The last reading of each GPU. `live`: the rows of journals that are not published. Raises FileNotFoundError."""
    paths = sound(LATEST.name, found.files[LATEST.name])
    for name in (TELEMETRY.name, LATE.name):
        paths += sound(name, [path for path in found.files[name] if journal_file.live_of(path)])
    by_collector: dict[str, list[Path]] = {}
    for path in paths:
        known = journal_file.live_of(path)
        by_collector.setdefault(journal_file.name_in(known[0] if known else path.stem), []).append(path)
    seen = _seen(found, live)
    needed = (_needed(of, seen.get(name, {})) for name, of in by_collector.items())
    noted, unread = _noted(tuple(one for several in needed for one in several))
    for path, reason in unread:
        skip(path, reason)
    if live is None:
        return noted
    import pyarrow as pa

    parts = [journal_file.whole(TELEMETRY.name, noted), live]
    return conform(LATEST, placing.last_rows(placing.newest(pa.concat_tables(parts))))


def _seen(found: Snapshot, live: pa.Table | None) -> dict[str, dict[int, int]]:
    """By collector: when the GPUs of its journal were read last (ns), by their hashes.

    Two GPUs of a large fleet may have the same hash. It tells something only where a single collector has it.
    """
    import numpy as np

    if live is None:
        return {}
    codes, gpus = gpu_codes(live)
    last = np.full(len(gpus), placing.EVER[0])
    ts = numbers(live["ts"])
    near = ts <= placing.ahead()
    np.maximum.at(last, codes[near], ts[near])
    when = {one: at for gpu, at in zip(gpus, last.tolist(), strict=True) for one in placing.hashes([gpu])}
    own: dict[str, set[int]] = {}
    for part, _ in found.journals:
        if part.table == TELEMETRY.name:
            own.setdefault(journal_file.name_in(part.generation), set()).update(_gpus_of(part.path))
    times = Counter(one for hashes in own.values() for one in hashes)
    return {name: {one: when[one] for one in hashes if one in when and times[one] == 1} for name, hashes in own.items()}


def _gpus_of(path: Path) -> frozenset[int]:
    """The GPUs that a journal's header names."""
    known = _gpus.get(path)
    if known is None:
        known = journal_file.gpus_in(str(path)) or frozenset()
        if len(_gpus) >= _MOST:
            _gpus.clear()
        if known:
            _gpus[path] = known
    return known


def _needed(paths: list[Path], seen: dict[int, int]) -> list[Stamped]:
    """The files of one collector that can hold the last row of one of its GPUs. `seen`: newer rows that are known."""
    dated = []
    for path in paths:
        bounds = placing.bounds(path)
        told = bounds if bounds is not None and bounds.gpus is not None else placing.Bounds(*placing.EVER, None)
        dated.append((told.last, path, told.gpus))
    seen = dict(seen)
    needed = []
    dated.sort(key=lambda one: one[:2])
    while dated:
        last, path, gpus = dated.pop()
        if gpus is None or any(seen.get(gpu, placing.EVER[0]) <= last for gpu in gpus):
            needed.append((path, stamp(path)))
            # After the oldest file nobody asks what was seen: of most collectors it is the only one.
            for gpu, at in _last_of(*needed[-1]).when.items() if dated else ():
                seen[gpu] = max(at, seen.get(gpu, at))
    return needed


@dataclass(frozen=True, slots=True)
class _Last:
    """The last row of each GPU of a file (None: the file is damaged), and when that was (ns), by the GPU's hash."""

    rows: pa.Table | None
    when: dict[int, int]
    reason: str = ""


@functools.lru_cache(maxsize=_MOST)
def _last_of(path: Path, now: tuple[int, int]) -> _Last:  # noqa: ARG001 - another stamp: another file
    import pyarrow as pa

    try:
        every = light.read(path, arrow_schema(LATEST.name).names)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, MemoryError, pa.ArrowException) as error:
        return _Last(None, {}, undecodable(error))
    rows = placing.last_rows(placing.newest(journal_file.whole(TELEMETRY.name, every)))
    when: dict[int, int] = {}
    ahead = placing.ahead()
    for cluster, gpu, at in zip(
        *(rows[name].to_pylist() for name in KEY[:2]), numbers(rows["ts"]).tolist(), strict=True
    ):
        (one,) = placing.hashes([(cluster, gpu)])
        known = at if at <= ahead else placing.EVER[0]  # any other row would be the last one
        when[one] = min(known, when.get(one, known))
    held = [name for name in rows.column_names if name in KEY or rows[name].null_count < len(rows)]
    return _Last(rows.select(held), when)


@functools.lru_cache(maxsize=4)
def _noted(stamped: tuple[Stamped, ...]) -> tuple[pa.Table, list[tuple[Path, str]]]:
    """The last row of each GPU of some files, and those that are damaged, with the reason."""
    import pyarrow as pa

    read = [(path, _last_of(path, now)) for path, now in stamped]
    bad = [(path, one.reason) for path, one in read if one.rows is None]
    parts = [one.rows for _, one in read if one.rows is not None]
    if not parts:
        return arrow_schema(LATEST.name).empty_table(), bad
    rows = journal_file.whole(TELEMETRY.name, pa.concat_tables(parts, promote_options="default").combine_chunks())
    return conform(LATEST, placing.last_rows(placing.newest(rows))), bad
