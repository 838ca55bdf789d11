"""The performance profiles that PAL's simulation draws its GPUs from: times of runs on TACC's Longhorn.

Four files of the SC'22 study, as published; a class of jobs takes one of them. Class C takes BERT's file again, as the
artifact does, and SGEMM's file stays unused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ...errors import InputError
from ...store.importing.content import LINE, Sheet, read
from .published_trace import CLASSES


@dataclass(frozen=True)
class _Source:
    """A published file: what its column `exp` says, which columns only it has, and how many rows."""

    exp: str
    only: frozenset[str]
    rows: int


_SOURCES = (
    _Source("resnet", frozenset({"cab-node", "median_memfreq"}), 1404),
    _Source("bert", frozenset({"warmup", "perf_s"}), 1096),
    _Source("pagerank", frozenset({"reps", "device", "kern_min_start"}), 880),
    _Source("sgemm", frozenset({"input_size", "kern", "dev_id"}), 11087),
)
_SOURCE_OF_CLASS = dict(zip(CLASSES, ("resnet", "bert", "bert", "pagerank"), strict=True))


@dataclass(frozen=True)
class Profiles:
    """Times by class, each (rows,) in the order of its file, any unit, higher is slower."""

    perf: dict[str, NDArray[np.float64]]
    notes: tuple[str, ...] = ()

    def relative(self) -> dict[str, NDArray[np.float64]]:
        """(rows,) by class: each time over the median of the file's rows."""
        return {name: times / np.median(times) for name, times in self.perf.items()}


def profiles(paths: Sequence[Path]) -> Profiles:
    """The profiles in these files, and in the CSV files of these folders, in any order, plain or compressed.

    Which file is which is read from its column `exp`, or from the columns that only this file was published with. A
    file given twice counts once, and so does a copy. Raises InputError where a file is no profile (in a folder it is
    passed over), where two differing files hold one profile, and where a class has none.
    """
    found: dict[str, tuple[Path, NDArray[np.float64]]] = {}
    for path, given in _files(paths):
        sheet = read(path)
        source = _source(sheet)
        if source is None:
            if given:
                raise InputError(
                    f"{path} is not one of the published profiles: it has no column `exp` that says resnet, bert, "
                    "pagerank or sgemm"
                )
            continue
        if source.exp not in _SOURCE_OF_CLASS.values():
            continue
        times = _times(path, sheet)
        if source.exp in found and not np.array_equal(found[source.exp][1], times):
            raise InputError(f"{found[source.exp][0]} and {path} both have {source.exp} runs; give only one of them")
        found.setdefault(source.exp, (path, times))
    _complete(found, paths)
    notes = tuple(
        f"{found[source.exp][0].name} has {found[source.exp][1].size:,} rows where the published file has "
        f"{source.rows:,}: the draws, and all that follows, differ from the published ones"
        for source in _SOURCES
        if source.exp in found and found[source.exp][1].size != source.rows
    )
    return Profiles({name: found[exp][1] for name, exp in _SOURCE_OF_CLASS.items()}, notes)


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Each file once, and whether it was named itself."""
    seen: set[Path] = set()
    for path in paths:
        inside = sorted(file for ending in ("*.csv", "*.csv.gz", "*.csv.zst") for file in path.glob(ending))
        for file in inside if path.is_dir() else [path]:
            if file.resolve() not in seen:
                seen.add(file.resolve())
                yield file, file == path


def _source(sheet: Sheet) -> _Source | None:
    if "exp" in sheet.names:
        experiments = {(text or "").casefold() for text in sheet.frame["exp"].unique()}
        named = [source for source in _SOURCES if all(text.startswith(source.exp) for text in experiments)]
    else:
        named = [source for source in _SOURCES if source.only <= set(sheet.names)]
    return named[0] if len(named) == 1 else None


def _times(path: Path, sheet: Sheet) -> NDArray[np.float64]:
    """The column `perf`. Every row counts, because a missing one would shift all random draws."""
    if sheet.refused.count:
        reason, lines = min(sheet.refused.lines.items(), key=lambda item: item[1][0])
        raise InputError(f"{path}, line {lines[0]}: {reason}; a published simulation needs every row")
    if "perf" not in sheet.names:
        raise InputError(f"{path} has no column perf; it has {', '.join(sheet.names[:12])}")
    text = sheet.frame["perf"].fill_null("")
    times = text.cast(pl.Float64, strict=False)
    wrong = (~(times.is_finite() & (times > 0)).fill_null(value=False)).arg_true()
    if len(wrong):
        line = sheet.frame[LINE][wrong[0]]
        raise InputError(f"{path}, line {line}: perf {text[wrong[0]]!r} is not a number above 0")
    return times.to_numpy()


def _complete(found: dict[str, tuple[Path, NDArray[np.float64]]], paths: Sequence[Path]) -> None:
    missing = [name for name, exp in _SOURCE_OF_CLASS.items() if exp not in found]
    if not missing:
        return
    wanted = " and ".join(dict.fromkeys(_SOURCE_OF_CLASS[name] for name in missing))
    has = f"{' and '.join(found)} in" if found else "none in"
    raise InputError(
        f"no profile of {wanted} runs was given, which class {' and '.join(missing)} of jobs needs; "
        f"there is {has} {', '.join(map(str, paths)) or 'no file at all'}"
    )
