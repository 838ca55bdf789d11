"""A process under the library of faults (native/faults.c), run as a script by test_faults.py.

    faulted.py FOLDER LIBRARY    reads lines "COMMAND AT KIND ERROR", and answers each with one line of JSON

For each line a child does the command on a copy of a store, and the file operation with the number AT fails: KIND 1
with ERROR and all after it, 2 by the end of the process, 3 in the middle of it, 4 with ERROR once. AT 0: nothing fails.
Another child, without faults, says what the store holds then, as a reader sees it and after a compaction.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from whorl.errors import WhorlError
from whorl.store import Store, compaction, retention
from whorl.store.rows import replacing
from whorl.store.system import processes
from whorl.tests.store.journaler import BEGAN, S, batch

GROUP = ("gpus", "runs", "results", "events")
DAYS_LATER = BEGAN + 30 * 86_400 * S

Say = Callable[..., None]


def rows(gpu: str, seconds: range, power: int) -> pa.Table:
    return pa.concat_tables(pa.Table.from_batches([batch([gpu], second, power)]) for second in seconds)


def group(name: str) -> dict[str, pa.Table]:
    ids = [f"{name}-{i}" for i in range(3)]
    return {
        "gpus": pa.table({"gpu": ids, "cluster": ["c"] * 3}),
        "runs": pa.table({"run_id": ids, "cluster": ["c"] * 3}),
        "results": pa.table({"run_id": ids, "figure": ["time"] * 3, "value": [0.0, 1.0, 2.0]}),
        "events": pa.table({"gpu": ids, "kind": ["gap"] * 3, "ts": pa.array([BEGAN] * 3, pa.timestamp("ns"))}),
    }


def template(root: Path) -> None:
    """A store with a group, segments of three hours, late rows, and the journal of a collector that was killed."""
    store = Store.create(root)
    store.append(group("base"), "base")
    for hour in range(3):
        store.append({"telemetry": rows("old", range(hour * 3600, hour * 3600 + 5), 1)}, f"old{hour}")
    store.append({"telemetry": rows("old", range(3601, 3603), 2)}, "late")
    child = os.fork()
    if child == 0:
        journal = store.journal("dead", background=False, offline=True)
        for second in range(6):
            journal.append_batch(batch(["dead"], second, 1))
            if second == 3:
                journal.publish()
        os._exit(0)
    os.waitpid(child, 0)


def append(root: Path, say: Say) -> None:
    store = Store.open(root)
    say("group", "new")
    say("try", "new", 0, 7)
    store.append({**group("new"), "telemetry": rows("new", range(1), 7)}, "new")
    say("stored", "new")
    say("done", "new", 0, 7)


def collect(root: Path, say: Say) -> None:
    journal = Store.open(root).journal("n", background=False, offline=True)
    failed: WhorlError | None = None
    for second, power in ((0, 1), (1, 1), (0, 2), (2, 1), (1, 3), (3, 1)):
        say("try", "n", second, power)
        try:
            journal.append_batch(batch(["n"], second, power))
            say("done", "n", second, power)
            if second == 1 and power == 1:
                journal.publish()
            if second == 2:
                journal.seal()
            if power == 3:
                journal.publish()
        except WhorlError as error:
            failed = error
    journal.close()
    if failed is not None:
        raise failed


def compact(root: Path, say: Say) -> None:
    compaction.compact(root, pace=replacing.OFFLINE, now=DAYS_LATER)
    say("finished")


def prune(root: Path, say: Say) -> None:
    retention.prune(root, 86_400, pace=replacing.OFFLINE, now=DAYS_LATER)
    say("finished")


COMMANDS: dict[str, Callable[[Path, Say], None]] = {
    "append": append, "collect": collect, "compact": compact, "prune": prune,
}  # fmt: skip


def holds(root: Path) -> dict[str, Any]:
    """What a reader sees."""
    store = Store.open(root)
    telemetry = store.arrow("telemetry", ["gpu", "ts", "power_mw"])
    latest = store.arrow("latest", ["gpu", "ts", "power_mw"])
    seconds = {
        name: [(ns - BEGAN) // S for ns in one["ts"].cast(pa.int64()).to_pylist()]
        for name, one in (("telemetry", telemetry), ("latest", latest))
    }
    out: dict[str, Any] = {
        name: list(zip(one["gpu"].to_pylist(), seconds[name], one["power_mw"].to_pylist(), strict=True))
        for name, one in (("telemetry", telemetry), ("latest", latest))
    }
    keys = {"gpus": "gpu", "runs": "run_id", "results": "run_id", "events": "gpu"}
    out |= {name: sorted(store.arrow(name, [key])[key].to_pylist()) for name, key in keys.items()}
    out["minutes"] = sum(store.arrow("telemetry_minutes", ["n"])["n"].to_pylist())
    out["skipped"] = [str(path) for path in store.skipped]
    return out


def _in_child(work: Callable[[], Any], out: Path) -> int:
    """Do it in a child: its exit status, 3 for an error of whorl's, 1 for any other; the answer goes to `out`."""
    child = os.fork()
    if child == 0:
        status = 0
        try:
            answer = work()
            if answer is not None:
                out.write_text(json.dumps(answer))
        except WhorlError as error:
            out.write_text(json.dumps(str(error)))
            status = 3
        except BaseException:
            traceback.print_exc()
            status = 1
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main(folder: Path, library: ctypes.CDLL) -> None:
    logging.disable(logging.WARNING)
    original = folder / "template"
    assert _in_child(lambda: template(original), folder / "none") == 0
    for number, line in enumerate(sys.stdin):
        command, at, kind, code = line.split()
        root, said, out = folder / f"S{number}", folder / f"said{number}", folder / f"out{number}"
        shutil.copytree(original, root)
        Store._views_point_here = lambda *_: True  # type: ignore[method-assign] # a copy: its views do not matter here
        handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def say(*what: object, handle: int = handle) -> None:
            os.write(handle, (json.dumps(what) + "\n").encode())

        def faulted(root: Path = root, command: str = command, at: int = int(at), kind: int = int(kind),
                    code: int = int(code), say: Say = say) -> None:  # fmt: skip
            processes.owner()
            library.faults_arm(os.fsencode(root), at, kind, code)
            try:
                COMMANDS[command](root, say)
            finally:
                say("operations", library.faults_count())
                library.faults_arm(b"/nowhere", 0, 0, 0)

        status = _in_child(faulted, out)
        answer: dict[str, Any] = {"status": status, "error": json.loads(out.read_text()) if out.exists() else ""}
        answer["said"] = [json.loads(one) for one in said.read_text().splitlines()]

        def look(root: Path = root) -> dict[str, Any]:
            seen = holds(root)
            replacing.recover(root, 0)
            compaction.compact(root, pace=replacing.OFFLINE, now=DAYS_LATER)
            return {"seen": seen, "later": holds(root)}

        answer["look"] = _in_child(look, out)
        answer |= json.loads(out.read_text()) if answer["look"] == 0 else {"looked": out.read_text()}
        os.close(handle)
        shutil.rmtree(root)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), ctypes.CDLL(sys.argv[2]))
