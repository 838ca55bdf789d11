"""Damages small files at random, imports them, and judges what was kept: for `test_mutations.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from whorl.errors import WhorlError
from whorl.store import Store
from whorl.store.importing import Options, Parsed, import_file, read_file
from whorl.tests.importing.damage import damaged
from whorl.tests.importing.judge import judge
from whorl.tests.stores import new_store


def unpacked(packed: bytes, data: bytes) -> bytes:
    """What a reader of the packed bytes sees: zstd as written here has no checksum, so it can be other text."""
    if packed[:4] != b"\x28\xb5\x2f\xfd":
        return data
    try:
        with pa.CompressedInputStream(pa.BufferReader(packed), "zstd") as stream:
            return bytes(stream.read())
    except OSError:
        return data


@dataclass
class Seen:
    """How many damaged files were kept and refused, and what was wrong, each with the seed of its case."""

    kept: int = 0
    refused: int = 0
    failures: list[dict[str, object]] = field(default_factory=list)


def run(folder: Path, seed: int, count: int, stores: Path) -> Seen:
    """Damage the CSV files of a folder `count` times, and import each into a store of its own too."""
    bases = sorted(folder.glob("*.csv"))
    seen = Seen()
    failures = seen.failures
    for number in range(seed, seed + count):
        case = damaged(bases, number)
        data = case.text()
        path = folder / f"case-{seed}" / case.file
        path.parent.mkdir(exist_ok=True)
        packed = case.pack(data)
        path.write_bytes(packed)
        data = unpacked(packed, data)
        try:
            found = read_file(path, Options())
            seen.kept += 1
            if data.strip():
                judge(case, data, found)
        except WhorlError as error:
            seen.refused += 1
            found = None
            if path.name not in str(error) or "\n" in str(error):
                failures.append({"seed": number, "damage": case.done, "what": f"unclear: {error}"})
        except Exception as error:
            failures.append({"seed": number, "damage": case.done, "what": f"{type(error).__name__}: {error}"[:300]})
            continue
        store = new_store(stores / str(number))
        failures += [{"seed": number, "damage": case.done, "what": what} for what in stored(store, path, found)]
    return seen


def stored(store: Store, path: Path, found: Parsed | None) -> list[str]:
    """What is wrong with the store after a case was imported, twice."""
    try:
        report = import_file(store, path, Options())
    except WhorlError as error:
        empty = not any(len(store.arrow(table)) for table in ("runs", "results", "telemetry", "gpus", "imports"))
        wrong = [] if found is None else [f"it could be parsed and not stored: {error}"]
        return wrong if empty else [*wrong, "a refused file left rows in the store"]
    if found is None:
        return ["it could be stored and not parsed"]
    wrong = []
    if report.total != found.report.total:
        wrong.append(f"accounts differ: {report.total} and {found.report.total}")
    imports = store.arrow("imports").to_pylist()
    account = {key: sum(row[key] for row in imports) for key in ("rows", "kept", "duplicates", "refused")}
    if account != report.total.as_dict():
        wrong.append("the account in `imports` differs from the report")
    if len(store.arrow(found.kind)) != report.total.kept:
        wrong.append("not every kept row is in the store")
    if not import_file(store, path, Options()).already:
        wrong.append("the second import was not noticed")
    return wrong
