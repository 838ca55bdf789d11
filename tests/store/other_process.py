"""Another process, which is asked line by line and can be killed on the way: with `made` it is a whorl of format 4.1.

In this made format `telemetry.read_us` has another name, and there is a metric more; `gpus.vbios` has another name and
is written small. The source of the schema is changed as it is imported. Each line is a JSON list: what to do, the
store, before which rename, link or removal the process is killed (0: none), and of a merge the source. What to do is
`answers`, `check`, `upgrade`, `merge`, a table log to be brought up to date, or a query. The answer is a line of JSON,
null of one that was killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any

CHANGED = {
    "whorl.store.schema": [
        ("FORMAT = 4\n", 'FORMAT = "4.1"\n'),
        ('_whole("read_us",', '_whole("fans_rpm", "made", "rpm", kind="gauge"),\n    _whole("answer_us",'),
        ('_text("vbios",', '_text("firmware",'),
    ],
    "whorl.store.formats": [
        (
            "UPGRADES: tuple[Upgrade, ...] = ()",
            """
def _small(rows):
    import pyarrow.compute as pc
    if "firmware" not in rows.column_names:
        return rows
    place = rows.column_names.index("firmware")
    return rows.set_column(place, "firmware", pc.utf8_lower(rows["firmware"]))


_NAMES = {"read_us": "answer_us"}
_OF_MINUTES = {f"read_us_{part}": f"answer_us_{part}" for part in ("min", "mean", "max")}
UPGRADES = (
    Upgrade(
        "4",
        "4.1",
        {
            "telemetry": _NAMES, "late": _NAMES, "latest": _NAMES, "telemetry_minutes": _OF_MINUTES,
            "gpus": {"vbios": "firmware"},
        },
        {"gpus": _small},
    ),
)
""",
        ),
    ],
}


class _Loader(SourceFileLoader):
    def get_code(self, fullname: str) -> Any:
        text = Path(self.path).read_text()
        for before, after in CHANGED[fullname]:
            assert before in text, before
            text = text.replace(before, after)
        return compile(text, self.path, "exec")


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname not in CHANGED:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = _Loader(fullname, spec.origin)
        return spec


def _killed_at(which: int, *places: tuple[Any, str]) -> list[str]:
    """Kill this process before its rename, link or removal of this number, from 1; the list grows with each of them.

    `places`: functions that count too, as the object that has each and its name there.
    """
    calls: list[str] = []

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) == which:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **options)

        return call

    for holder, name in [*((os, name) for name in ("rename", "link", "unlink", "replace")), *places]:
        setattr(holder, name, counted(name, getattr(holder, name)))
    return calls


def _in_child(work: Any) -> Any:
    """What a child answers; None where it was killed."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        try:
            answer: Any = work()
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        os.write(writer, json.dumps(answer, default=str).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answered:
        text = answered.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def _commits(log: str) -> list[tuple[Any, str]]:
    """What makes a version of a table in a log."""
    if log == "delta":
        import deltalake.transaction

        return [(deltalake.DeltaTable, "create_write_transaction"), (deltalake.transaction, _NEW_DELTA)]
    from pyiceberg.catalog.sql import SqlCatalog

    return [(SqlCatalog, "commit_table")]


_NEW_DELTA = "create_table_with_add_actions"


def main() -> None:
    if sys.argv[1:] == ["made"]:
        sys.meta_path.insert(0, _Finder())
    for library in ("duckdb", "polars", "pyarrow.parquet"):  # here, so that no child has to
        import_module(library)
    from whorl.store import Store, merging, table_logs, telemetry_files
    from whorl.store.schema import table
    from whorl.store.upgrade import upgrade
    from whorl.tests.store.frozen.answers import answers

    def work(what: str, root: str, kill: int, source: str = "") -> Any:
        if what == "merge":
            telemetry_files.MOST_ROWS = 40
            calls = _killed_at(kill)
            return vars(merging.merge(Path(root), Path(source))) | {"steps": len(calls)}
        if what == "upgrade":
            calls = _killed_at(kill)
            return vars(upgrade(Path(root), offline=True)) | {"steps": len(calls)}
        if what in ("delta", "iceberg"):
            table_logs._TABLES = (table("telemetry"), table("late"))
            steps = _killed_at(kill, *_commits(what), (os, "fsync"))
            table_logs.register(Store(root), what)
            return len(steps)
        store = Store(root)
        if what == "check":
            return list(map(str, store.check()))
        return answers(store) if what == "answers" else store.sql(what).to_pylist()

    for line in sys.stdin:
        sys.stdout.write(json.dumps(_in_child(partial(work, *json.loads(line))), default=str) + "\n")
        sys.stdout.flush()


def asked(*arguments: str) -> tuple[Callable[..., Any], Callable[[], object]]:
    """Such a process: how to ask it, and how to end it."""
    command = [sys.executable, __file__, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    to_process, from_process = process.stdin, process.stdout
    assert to_process is not None
    assert from_process is not None

    def ask(what: str, root: Path, kill: int = 0, *more: Path) -> Any:
        to_process.write(json.dumps([what, str(root), kill, *map(str, more)]) + "\n")
        to_process.flush()
        return json.loads(from_process.readline())

    def end() -> None:
        to_process.close()
        process.wait()
        from_process.close()

    return ask, end


if __name__ == "__main__":
    main()
