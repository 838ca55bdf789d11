"""Every file operation of every command that changes a store dies, is torn, or fails: nothing acknowledged is lost."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from whorl.tests.nvml_library import compile_shared
from whorl.tests.sizes import sample
from whorl.tests.store.faulted import COMMANDS, GROUP

SOURCE = Path(__file__).with_name("native") / "faults.c"
KINDS = {
    "killed before": (2, 0),
    "killed in the middle": (3, 0),
    "disk full from then on": (1, errno.ENOSPC),
    "read-only from then on": (1, errno.EROFS),
    "one error of the disk": (4, errno.EIO),
}
OLD = {("old", hour * 3600 + second): 1 for hour in range(3) for second in range(5)}
OLD |= {("old", 3601): 2, ("old", 3602): 2} | {("dead", second): 1 for second in range(6)}


class Faulted:
    """The process that forks children which fail."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, command: str, at: int = 0, kind: int = 0, code: int = 0) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command} {at} {kind} {code}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process ended"
        return dict(json.loads(line))


@pytest.fixture
def faulted(tmp_path: Path) -> Iterator[Faulted]:
    library = compile_shared(tmp_path / "faults.so", [SOURCE], "-ldl")
    command = [sys.executable, "-m", "whorl.tests.store.faulted", str(tmp_path), str(library)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"LD_PRELOAD": str(library)}
    ) as process:
        yield Faulted(process)
        assert process.stdin is not None
        process.stdin.close()


def judge(answer: dict[str, Any], about: object) -> None:
    """The oracle: what was said before and after each step, against what the store holds."""
    assert answer["look"] == 0, (about, answer.get("looked"))
    tried: dict[tuple[str, int], list[int]] = {key: [power] for key, power in OLD.items()}
    acknowledged = dict.fromkeys(OLD, 0)
    groups, stored = {"base"}, {"base"}
    for what, *rest in answer["said"]:
        if what in ("try", "done"):
            gpu, second, power = rest
            powers = tried.setdefault((gpu, second), [])
            if what == "try":
                powers.append(power)
            else:
                acknowledged[gpu, second] = powers.index(power)
        elif what == "group":
            groups.add(rest[0])
        elif what == "stored":
            stored.add(rest[0])
    for when in ("seen", "later"):
        found = answer[when]
        assert found["skipped"] == [], (about, when)
        telemetry = {(gpu, second): power for gpu, second, power in found["telemetry"]}
        assert len(telemetry) == len(found["telemetry"]), (about, when, "a row is there twice")
        assert telemetry.keys() <= tried.keys()
        if not found["minutes"]:
            assert acknowledged.keys() <= telemetry.keys(), (about, when, "a row is lost")
            for key, power in telemetry.items():
                assert power in tried[key][acknowledged.get(key, 0) :], (about, when, key)
            last = {gpu: max(s for g, s in telemetry if g == gpu) for gpu, _ in telemetry}
            latest = {gpu: (second, power) for gpu, second, power in found["latest"]}
            assert latest == {gpu: (second, telemetry[gpu, second]) for gpu, second in last.items()}, (about, when)
        else:
            assert found["minutes"] + len(telemetry) == len(OLD), (about, when)
        for table in GROUP:
            many = Counter(name.rpartition("-")[0] for name in found[table])
            assert set(many.values()) <= {3}, (about, when, table)
            assert stored <= set(many) <= groups, (about, when, table)
        assert len({frozenset(found[table]) for table in GROUP}) == 1, (about, when, "a group is there in part")


LONGEST = 70


def test_nothing_acknowledged_is_lost_or_doubled_whatever_fails(faulted: Faulted) -> None:
    points = []
    for command in COMMANDS:
        whole = faulted(command)
        assert whole["status"] == 0, whole
        judge(whole, command)
        ((_, operations),) = [said for said in whole["said"] if said[0] == "operations"]
        assert operations > 10
        points += [(command, at, kind) for at in range(1, operations + 1) for kind in KINDS]
    few = points[:: max(1, len(points) // LONGEST)]  # all 1,800 take an hour
    for command, at, kind in sample(few, short=2):
        answer = faulted(command, at, *KINDS[kind])
        about = (command, at, kind, answer["status"], answer["error"])
        expected = (-9, 0) if "killed" in kind else (0, 3)
        assert answer["status"] in expected, about  # an error of the disk is one of whorl's sentences
        judge(answer, about)
        if answer["status"] == 0 and command in ("compact", "prune") and "from then on" in kind:
            assert at > 0.5 * max(a for c, a, _ in points if c == command), (about, "it says that all is well")
