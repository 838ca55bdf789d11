"""A process under the library of faults (tests/native/faults.c) that works on stores for test_store_oracle.py.

    store_worker.py FOLDER LIBRARY    reads lines of JSON, and answers each with one line of JSON

A line has `steps`, and what fails: `at` (the number of the file operation; 0: none), `kind` and `code`. A child does
the steps on FOLDER/store. Its log, FOLDER/log, says of each step when it began and how it ended. With `keep`, it is
the store that later lines begin with; else another child says what readers see, also after the next collectors and a
compaction have put everything in order.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa

import whorl
from whorl.errors import WhorlError

S = 10**9
BEGAN = 1_700_006_400 * S  # the beginning of a day
DAY = 86_400 * S
LATER = BEGAN + 30 * DAY
WRITERS = ("n1", "n2")
COLUMNS = ("cluster", "gpu", "ts", "power_mw", "clock_event_reasons", "quality")
HISTORY = (
    "select cluster, gpu, epoch_ns(time_bucket(interval 1 minute, ts)::timestamp_ns) as ts, sum(n)::bigint as n, "
    "min(power_mw_min) as low, max(power_mw_max) as high, bit_or(clock_event_reasons) as mask from history group by all"
)


def rows_of(rows: list[list[Any]]) -> dict[str, Any]:
    columns: dict[str, Any] = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    columns["ts"] = [BEGAN + second * S for second in columns["ts"]]
    return columns


def table(rows: list[list[Any]]) -> pa.Table:
    types = {"cluster": pa.string(), "gpu": pa.string(), "ts": pa.timestamp("ns"), "quality": pa.string()}
    columns = {name: pa.array(values, types.get(name, pa.int64())) for name, values in rows_of(rows).items()}
    return pa.table(columns)


class Worker:
    """Does steps on a store, and logs them."""

    def __init__(self, root: Path, log: int, library: ctypes.CDLL) -> None:
        self._root, self._log, self._library = root, log, library
        self._store: whorl.Store | None = None
        self._journals: dict[str, Any] = {}

    def say(self, *words: object) -> None:
        os.write(self._log, (json.dumps(words) + "\n").encode())

    def work(self, steps: list[dict[str, Any]]) -> None:
        for number, step in enumerate(steps):
            self.say("try", number, self._library.faults_count())
            try:
                self._do(step)
            except WhorlError as error:
                self.say("failed", number, str(error))
            else:
                self.say("done", number)
                if step["do"] in ("append", "correct", "journal"):
                    self._look_for_unsynced(number)
        self.say("operations", self._library.faults_count())

    def _do(self, step: dict[str, Any]) -> None:
        if self._store is None:
            self._store = whorl.Store(self._root)
        store = self._store
        match step["do"]:
            case "append":
                names = [f"{step['name']}-{number}" for number in range(3)]
                group = {"runs": pa.table({"run_id": names}), "events": pa.table({"detail": names})}
                store.append({**group, "telemetry": table(step["rows"])}, step["name"])
            case "correct":
                store.correct(table(step["rows"]), step["name"])
            case "journal":
                columns = rows_of(step["rows"])
                self._journal(step["writer"]).append(columns.pop("ts"), columns.pop("gpu"), columns)
            case "publish":
                self._journal(step["writer"]).publish()
            case "seal":
                self._journal(step["writer"]).seal()
            case "close":
                if step["writer"] in self._journals:
                    self._journals.pop(step["writer"]).close()
            case "compact":
                store.compact(offline=True, now=LATER)
            case "prune":
                for name in WRITERS:
                    self._journal(name).seal()
                store.prune("1d", offline=True, now=BEGAN + 2 * DAY)
            case "read":
                store.latest()
                store.sql("from history")

    def _journal(self, name: str) -> Any:
        assert self._store is not None
        if name not in self._journals:
            self._journals[name] = self._store.journal(name, durable_s=0, background=False, offline=True)
        return self._journals[name]

    def _look_for_unsynced(self, number: int) -> None:
        for path in self._root.rglob("*"):
            if path.is_dir() or path.suffix in (".parquet", ".arrow"):
                inode = ctypes.c_ulong(path.lstat().st_ino)
                if not path.name.startswith(".tmp-") and self._library.faults_unsynced(inode):
                    self.say("unsynced", number, str(path.relative_to(self._root)))


def readers(root: Path, plain: bool) -> dict[str, Any]:
    """What each kind of reader sees; times in s after the beginning."""
    store = whorl.Store(root)
    seen: dict[str, Any] = {
        "arrow": listed(store.arrow("telemetry", list(COLUMNS))),
        "scan": listed(store.collect(store.scan("telemetry").select(COLUMNS)).to_arrow()),
        "sql": listed(store.sql(f"select {', '.join(COLUMNS)} from telemetry").table),
        "latest": listed(store.latest().select(list(COLUMNS))),
        "history": listed(store.sql(HISTORY).table),
    }
    seen["runs"] = sorted(store.arrow("runs", ["run_id"])["run_id"].to_pylist())
    seen["events"] = sorted(store.collect(store.scan("events").select(pl.col("detail")))["detail"].to_list())
    if plain:
        with duckdb.connect(root / "whorl.duckdb", read_only=True) as client:
            seen["plain"] = listed(client.sql(f"select {', '.join(COLUMNS)} from telemetry").to_arrow_table())
            seen["plain history"] = listed(client.sql(HISTORY).to_arrow_table())
    seen["skipped"] = [str(path) for path in store.skipped]
    seen["unsound"] = [str(path) for path in store.check()] if plain else []
    return seen


def listed(rows: Any) -> list[list[Any]]:
    columns = [rows[name].cast(pa.int64()) if name == "ts" else rows[name] for name in rows.column_names]
    values: list[list[Any]] = [column.to_pylist() for column in columns]
    at = rows.column_names.index("ts")
    values[at] = [(ns - BEGAN) // S for ns in values[at]]
    return [list(row) for row in zip(*values, strict=True)]


def look(root: Path) -> dict[str, Any]:
    answer = {"at once": readers(root, plain=False)}
    store = whorl.Store(root)
    for name in WRITERS:
        store.journal(name, background=False, offline=True).close()
    store.compact(offline=True, now=LATER)
    return answer | {"in order": readers(root, plain=True)}


def in_child(work: Callable[[], Any], out: Path) -> int:
    """Do it in a child; its answer goes to `out`. The exit status: 1 for an error that is not whorl's own."""
    out.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            out.write_text(json.dumps(work()))
            status = 0
        except BaseException:
            out.write_text(json.dumps(traceback.format_exc()))
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def load_modules(folder: Path) -> None:
    """Import what children will need, once for all of them; only in a child is anything done that starts threads."""

    def used() -> list[str]:
        store = whorl.Store.create(folder / "first")
        with store.journal("n", background=False, offline=True) as journal:
            journal.append(BEGAN, ["a"], {"cluster": "c"})
            journal.publish()
        store.append({"telemetry": table([["c", "a", 0, 1, 1, None]])}, "x")
        look(store.root)
        store.prune("1d", offline=True)
        return list(sys.modules)

    assert in_child(used, folder / "out") == 0, (folder / "out").read_text()
    for name in json.loads((folder / "out").read_text()):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    shutil.rmtree(folder / "first")


def main(folder: Path, library: ctypes.CDLL) -> None:
    logging.disable(logging.WARNING)
    root, template, out = folder / "store", folder / "template", folder / "out"
    load_modules(folder)
    for line in sys.stdin:
        answer: dict[str, Any] = {}
        order = json.loads(line)
        shutil.rmtree(root, ignore_errors=True)
        if template.exists() and not order.get("keep"):
            shutil.copytree(template, root)
        else:
            assert in_child(lambda: whorl.Store.create(root) and None, out) == 0, out.read_text()
        log = os.open(folder / "log", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        pauses, ends = os.pipe(), os.pipe()

        def faulted(order: Any = order, log: int = log, pauses: Any = pauses, ends: Any = ends) -> None:
            library.faults_pipes(pauses[1], ends[0])
            if order["kind"] == 5:
                library.faults_lockless(b"host1")
            library.faults_arm(os.fsencode(root), order["at"], order["kind"], order["code"])
            Worker(root, log, library).work(order["steps"])
            os._exit(0)  # without closing anything, as if killed

        child = os.fork()
        if child == 0:
            try:
                os.close(pauses[0])
                faulted()
            except BaseException:
                out.write_text(json.dumps(traceback.format_exc()))
            os._exit(1)
        os.close(pauses[1])
        if order["kind"] == 5 and os.read(pauses[0], 1):

            def intrude(order: Any = order, log: int = log) -> None:
                library.faults_lockless(b"host2")
                library.faults_arm(os.fsencode(root), 0, 0, 0)
                worker = Worker(root, log, library)
                worker.say("intruder")
                worker.work(order["intruder"])

            answer["intruder"] = in_child(intrude, out)
            os.write(ends[1], b".")
        answer["status"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for handle in (pauses[0], *ends):
            os.close(handle)
        answer["log"] = [json.loads(text) for text in (folder / "log").read_text().splitlines()]
        os.close(log)
        if answer["status"] == 1 or answer.get("intruder"):
            answer["error"] = json.loads(out.read_text())
        elif order.get("keep"):
            shutil.rmtree(template, ignore_errors=True)
            root.rename(template)
        else:
            answer["look"] = in_child(lambda: look(root), out)
            answer |= {"seen": json.loads(out.read_text())}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), ctypes.CDLL(sys.argv[2]))
