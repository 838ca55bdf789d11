"""A process under the library of faults (tests/native/faults.c) that works on stores for test_store_oracle.py.

    store_worker.py FOLDER LIBRARY    reads lines of JSON, and answers each with one line of JSON

A line has `steps`, and what fails: `at` (the number of the file operation; 0: none), `kind` and `code`; without a kind
the machine dies at the end. Where `lockless`, no lock holds. If it is watched, nothing fails, and before the first file
operations of every wanted kind of each step the store is copied: readers look at copies while the process lives, and at
others when it is dead, as if it had been killed at that moment. A child does the steps on FOLDER/store. Its log,
FOLDER/log, says of each step when it began and how it ended. With `keep`, it is the store that later lines begin with;
else another child says what readers see, also after the next collectors and a compaction have put everything in order.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import logging
import os
import re
import shutil
import sys
import traceback
from collections import Counter
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
WATCHED = 6
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
                event = pa.RecordBatch.from_pydict({"detail": [f"journal {step['name']}"]})
                self._journal(step["writer"]).append_batch(event, "events")
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
                for name in step.get("seals", ()):
                    self._journal(name).seal()
                prune(store)
            case "read":
                store.latest()
                store.sql("from history")

    def _journal(self, name: str) -> Any:
        assert self._store is not None
        if name not in self._journals:
            self._journals[name] = self._store.journal(name, durable_s=0, background=False, offline=True)
        return self._journals[name]


def prune(store: whorl.Store) -> None:
    store.prune("1d", offline=True, now=BEGAN + 2 * DAY)


def readers(root: Path, *, plain: bool = False, few: bool = False) -> dict[str, Any]:
    """What each kind of reader sees, or the cheapest `few` kinds; times in s after the beginning."""
    store = whorl.Store(root)
    answers: dict[str, Any] = {
        "arrow": listed(store.arrow("telemetry", list(COLUMNS))),
        "latest": listed(store.latest().select(list(COLUMNS))),
    }
    if not few:
        answers |= {
            "scan": listed(store.collect(store.scan("telemetry").select(COLUMNS)).to_arrow()),
            "sql": listed(store.sql(f"select {', '.join(COLUMNS)} from telemetry").table),
            "history": listed(store.sql(HISTORY).table),
        }
    answers["runs"] = sorted(store.arrow("runs", ["run_id"])["run_id"].to_pylist())
    events = store.collect(store.scan("events").select(pl.col("detail")))["detail"].to_list()
    answers["events"] = sorted(name for name in events if not name.startswith("journal "))
    answers["journal events"] = [name.removeprefix("journal ") for name in events if name.startswith("journal ")]
    if plain:
        with duckdb.connect(root / "whorl.duckdb", read_only=True) as client:
            answers["plain"] = listed(client.sql(f"select {', '.join(COLUMNS)} from telemetry").to_arrow_table())
            answers["plain history"] = listed(client.sql(HISTORY).to_arrow_table())
    answers["skipped"] = [str(path) for path in store.skipped]
    answers["unsound"] = [str(path) for path in store.check()] if plain else []
    return answers


def listed(rows: Any) -> list[list[Any]]:
    values: list[list[Any]] = [column.to_pylist() for column in rows.columns]
    at = rows.column_names.index("ts")
    instants = rows["ts"].cast(pa.timestamp("ns")).cast(pa.int64()).to_pylist()
    values[at] = [(ns - BEGAN) // S for ns in instants]
    return [list(row) for row in zip(*values, strict=True)]


def look(root: Path, *, pruned: bool = False) -> dict[str, Any]:
    """What readers see at once, and in order again: after the next collectors, pruning once more, and a compaction."""
    answer = {"at once": readers(root)}
    store = whorl.Store(root)
    for name in WRITERS:
        store.journal(name, background=False, offline=True).close()
    if pruned:
        prune(store)
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


def kind_of(path: str) -> str:
    """The table or folder of a file, and the ending of its name."""
    *folders, name = path.removeprefix("/").split("/")
    ending = re.search(r"((\.[12])?\.[a-z]+)?$", name)
    assert ending is not None
    plain_folders = [folder for folder in folders if "=" not in folder and "~" not in folder]
    return "/".join([*plain_folders, ".tmp" if name.startswith(".tmp-") else f"*{ending[0]}"])


class Watch:
    """Looks at what a store is like just before the operations of a process, which waits at each of them."""

    def __init__(self, folder: Path, steps: list[dict[str, Any]], wanted: dict[str, Any]) -> None:
        self._folder, self._steps, self._wanted = folder, steps, wanted
        self.moments: list[dict[str, Any]] = []
        self.operations: list[list[Any]] = []
        self._times: Counter[str] = Counter()

    def follow(self, pauses: int, go_on: int) -> None:
        """Answer each line of the process, until it closes the pipe or says that it is at its end."""
        shutil.rmtree(self._folder / "moments", ignore_errors=True)
        with os.fdopen(pauses, closefd=False) as lines:
            for line in lines:
                if line == "end\n":
                    return
                number, operation, path = line.rstrip("\n").split(" ", 2)
                self._take(int(number), operation, path)
                os.write(go_on, b".")

    def _take(self, number: int, operation: str, path: str) -> None:
        log = (self._folder / "log").read_text().splitlines()
        step = max((words[1] for words in map(json.loads, log) if words[0] == "try"), default=0)
        kind = f"{self._steps[step]['do']} {operation} {kind_of(path)}"
        self.operations.append([number, kind])
        self._times[kind] += 1
        if self._times[kind] <= self._wanted["most"]:
            states = [state for state in ("living", "dead") if re.search(self._wanted[state], kind)]
            for state in states:
                shutil.copytree(self._folder / "store", self._at(number, state))
            if states:
                self.moments.append({"about": [number, kind, path], "lines": len(log), "states": states})

    def look(self, state: str) -> None:
        """Let readers look at the copies for a state of the process."""
        moments = [moment for moment in self.moments if state in moment["states"]]
        out = self._folder / "out"
        if in_child(lambda: [self._look(moment, state) for moment in moments], out):
            raise RuntimeError(json.loads(out.read_text()))
        for moment, view in zip(moments, json.loads(out.read_text()), strict=True):
            moment[state] = view

    def _look(self, moment: dict[str, Any], state: str) -> dict[str, Any]:
        root = self._at(moment["about"][0], state)
        if state == "living":
            return {"meanwhile": readers(root, few=self._wanted["few"])}
        log = (self._folder / "log").read_text().splitlines()[: moment["lines"]]
        actions = [self._steps[words[1]]["do"] for words in map(json.loads, log) if words[0] == "try"]
        return look(root, pruned="prune" in actions)

    def _at(self, number: int, state: str) -> Path:
        return self._folder / "moments" / f"{number}-{state}"


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
            if order["kind"] == 5 or order.get("lockless"):
                library.faults_lockless(b"host1")
            library.faults_arm(os.fsencode(root), order["at"], order["kind"], order["code"])
            Worker(root, log, library).work(order["steps"])
            if order["kind"] == WATCHED:
                os.write(pauses[1], b"end\n")
                os.read(ends[0], 1)
            if order["kind"] == 0:
                library.faults_lose()
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
        if order["kind"] == WATCHED:
            watch = Watch(folder, order["steps"], order["wanted"])
            watch.follow(pauses[0], ends[1])
            watch.look("living")
            os.write(ends[1], b".")
            answer["status"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            watch.look("dead")
            answer |= {"operations": watch.operations, "moments": watch.moments}
        if order["kind"] == 5 and os.read(pauses[0], 1):

            def intrude(order: Any = order, log: int = log) -> None:
                library.faults_lockless(b"host2")
                library.faults_arm(os.fsencode(root), 0, 0, 0)
                worker = Worker(root, log, library)
                worker.say("intruder")
                worker.work(order["intruder"])

            answer["intruder"] = in_child(intrude, out)
            os.write(ends[1], b".")
        if order["kind"] != WATCHED:
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
        elif order["kind"] != WATCHED:

            def look_again(order: Any = order) -> dict[str, Any]:
                if order.get("lockless") and order["kind"] != 5:  # without locks only its host knows that it is dead
                    library.faults_lockless(b"host1")
                return look(root)

            answer["look"] = in_child(look_again, out)
            answer |= {"seen": json.loads(out.read_text())}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), ctypes.CDLL(sys.argv[2]))
