"""The oracle of the store: whatever happens to it, it holds what a plain table says.

Random programs of appends, corrections, journals, publishing, sealing, compaction, pruning and reading run in a process
that dies, alone or with its machine, or whose disk fails, at any of its file operations (store_worker.py); or the
process waits there while another host, for which no lock holds, works on the same store. Where the machine dies, all is
gone that was not made durable. Then every reader must see every acknowledged row once and nothing that was never
written, at once and after others have put the store in order.
"""

from __future__ import annotations

import copy
import errno
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from whorl.tests.conftest import BuiltOnce
from whorl.tests.nvml_library import SOURCES, compile_shared
from whorl.tests.sizes import count, is_all, is_long, sample

WORKER = Path(__file__).with_name("store_worker.py")
DAY_S = 86_400
SECONDS = (0, 1, 2, 59, 60, 3_600, DAY_S, DAY_S + 1, DAY_S + 60)
WATCHED = 6
KINDS = {
    "killed before": (2, 0),
    "killed in the middle": (3, 0),
    "killed with its machine": (7, 0),
    "disk full from then on": (1, errno.ENOSPC),
    "read-only from then on": (1, errno.EROFS),
    "one error of the disk": (4, errno.EIO),
    "another host meanwhile, locks lost": (5, 0),
}
WRITING = ("append", "correct", "journal")

Key = tuple[str | None, str | None, int]
Values = tuple[int | None, int | None, str | None]
Step = dict[str, Any]


class Program:
    """Random steps; `pruned` says whether rows of the first day may be minutes by now."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = 0
        self._keys: list[Key] = []
        self.pruned = False

    def steps(self, number: int, *, host: int = 1) -> list[Step]:
        return [self._step(host) for _ in range(number)]

    def _step(self, host: int) -> Step:
        drawn = self._random
        names = ["journal"] * 4 + ["append"] * 3 + ["correct", "publish", "seal", "close", "compact", "read"]
        do = drawn.choice(names + ["prune"] * (not self.pruned and self._number > 3))
        self._number += 1
        step: Step = {"do": do, "writer": drawn.choice(["n1", "n2"]), "name": f"h{host}-{self._number}"}
        if do == "prune":
            self.pruned = True
            step["seals"] = drawn.choice([[], ["n1", "n2"]])  # a day waits for an open journal that holds rows of it
        if do in WRITING:
            step["rows"] = self._rows(correcting=do == "correct")
        return step if step.get("rows") or do not in WRITING else {"do": "read"}

    def _rows(self, *, correcting: bool) -> list[list[Any]]:
        drawn, first_s = self._random, DAY_S if self.pruned else 0
        keys: list[Key]
        if correcting:
            late_keys = [key for key in self._keys if key[2] >= first_s]
            keys = drawn.sample(late_keys, min(len(late_keys), 2))
        else:
            times = [second for second in SECONDS if second >= first_s]
            keys = [
                (drawn.choice("cccd"), drawn.choice("AAB"), drawn.choice(times)) for _ in range(drawn.randint(1, 5))
            ]
            keys = list(dict.fromkeys(keys))
            self._keys += keys
        return [
            [*key, drawn.choice([None, *range(6)]), drawn.choice([None, *range(8)]), drawn.choice([None, "stuck"])]
            for key in keys
        ]


@dataclass
class PlainTable:
    """What was written, as a plain table: of each key the values that were tried, and the last that must be there."""

    tried: dict[Key, list[Values]] = field(default_factory=dict)
    acknowledged: dict[Key, int] = field(default_factory=dict)
    groups: set[str] = field(default_factory=set)
    stored_groups: set[str] = field(default_factory=set)
    events: list[str] = field(default_factory=list)
    stored_events: list[str] = field(default_factory=list)
    pruned: bool = False
    """Whether rows of the first day may be minutes by now."""
    certain: bool = True
    """Whether nothing was interrupted, so that the store must equal the table."""

    def follow(
        self, steps: list[Step], log: list[list[Any]], about: object, *, fatal: int | None = None, once: bool = False
    ) -> None:
        """Take in what a worker did: `log` without lines of another worker.

        From operation `fatal` on all failed; or the disk failed `once` and works again, so that a journal stored
        nothing of what it refused.
        """
        counts: dict[int, int] = {}
        for word, *words in log:
            if word == "operations":
                continue
            step = steps[words[0]]
            if word == "try":
                counts[words[0]] = words[1]
                self._try(step)
            if word == "failed" and once and step["do"] == "journal":
                self._take_back(step)
            stored = word == "done" or (word == "failed" and words[1].startswith("stored, but not yet in place"))
            if stored and step["do"] in WRITING:
                assert fatal is None or counts[words[0]] < fatal, (about, step, "acknowledged on a disk that is full")
                self._acknowledge(step)
            self.certain &= word != "failed" or "are not stored (first" in words[1]
        self.certain &= {words[0] for word, *words in log if word in ("done", "failed")} == set(counts)

    def _try(self, step: Step) -> None:
        for *key, power, reasons, quality in step.get("rows", ()):
            self.tried.setdefault((key[0], key[1], key[2]), []).append((power, reasons, quality))
        if step["do"] == "append":
            self.groups.add(step["name"])
        if step["do"] == "journal":
            self.events.append(step["name"])
        self.pruned |= step["do"] == "prune"

    def _take_back(self, step: Step) -> None:
        for cluster, gpu, second, *_ in step["rows"]:
            self.tried[cluster, gpu, second].pop()
            if not self.tried[cluster, gpu, second]:
                del self.tried[cluster, gpu, second]

    def _acknowledge(self, step: Step) -> None:
        for cluster, gpu, second, *_ in step["rows"]:
            self.acknowledged[cluster, gpu, second] = len(self.tried[cluster, gpu, second]) - 1
        if step["do"] == "append":
            self.stored_groups.add(step["name"])
        if step["do"] == "journal":
            self.stored_events.append(step["name"])

    def allowed(self, key: Key) -> list[Values]:
        return self.tried[key][self.acknowledged.get(key, 0) :]

    def judge(self, answers: dict[str, Any], about: object) -> None:
        """Whether readers saw this table."""
        assert answers["skipped"] == answers["unsound"] == [], about
        first: dict[Key, Values] | None = None
        for reader in ("arrow", "scan", "sql", "plain"):
            if reader not in answers:
                continue
            rows = {(row[0], row[1], row[2]): (row[3], row[4], row[5]) for row in answers[reader]}
            assert len(rows) == len(answers[reader]), (about, reader, "a row is there twice")
            first = first if first is not None else rows
            assert rows == first, (about, reader, "readers differ")
        assert first is not None
        must = {key for key in self.acknowledged if not self.pruned or key[2] >= DAY_S}
        assert must <= first.keys() <= self.tried.keys(), (about, must - first.keys(), first.keys() - self.tried.keys())
        for key, values in first.items():
            assert values in self.allowed(key), (about, key, values, self.allowed(key))
        if "history" in answers:
            self._judge_history(answers["history"], about)
        assert answers.get("plain history") is None or sorted(map(repr, answers["plain history"])) == sorted(
            map(repr, answers["history"])
        ), (about, "a plain client sees another history")
        self._judge_latest({(row[0], row[1]): row[2:] for row in answers["latest"]}, first, about)
        for table in ("runs", "events"):
            numbers = Counter(name.rpartition("-")[0] for name in answers[table])
            assert set(numbers.values()) <= {3}, (about, table, "a group is there in part")
            assert self.stored_groups <= numbers.keys() <= self.groups, (about, table)
        assert answers["runs"] == answers["events"], (about, "a group is there in part")
        events = answers["journal events"]
        assert len(events) == len(set(events)), (about, "an event of a journal is there twice")
        assert set(self.stored_events) <= set(events) <= set(self.events), (about, "events of a journal")

    def _judge_history(self, history: list[list[Any]], about: object) -> None:
        """Also of pruned rows: how many readings a minute has, and their lowest and highest power."""
        minutes: dict[Key, list[Key]] = {}
        for key in self.tried:
            minutes.setdefault((key[0], key[1], key[2] // 60 * 60), []).append(key)
        by_key = {(row[0], row[1], row[2]): row[3:] for row in history}
        assert len(by_key) == len(history), (about, "a minute is there twice")
        assert by_key.keys() <= minutes.keys(), about
        for minute, keys in minutes.items():
            least = sum(key in self.acknowledged for key in keys)
            number, low, high, mask = by_key.get(minute, [0, None, None, None])
            assert least <= number <= len(keys), (about, minute, number, least, len(keys))
            powers = {values[0] for key in keys for values in self.allowed(key)} - {None}
            assert {low, high} - {None} <= powers, (about, minute, low, high)
            if self.certain:
                rows = [self.allowed(key)[0] for key in keys if key in self.acknowledged]
                familiar = [power for power, _, _ in rows if power is not None]
                bits = [reasons for _, reasons, _ in rows if reasons is not None]
                expected = None
                for reasons in bits:
                    expected = reasons if expected is None else expected | reasons
                assert [low, high, mask] == [min(familiar, default=None), max(familiar, default=None), expected], (
                    about,
                    minute,
                )

    def _judge_latest(self, latest: dict[Any, list[Any]], rows: dict[Key, Values], about: object) -> None:
        for whose in {key[:2] for key in rows} | {key[:2] for key in self.acknowledged}:
            newest = max(key[2] for key in (*rows, *self.acknowledged) if key[:2] == whose)
            assert latest[whose][0] == newest, (about, whose, latest[whose], newest)
            values = rows.get((whose[0], whose[1], newest))
            assert values is None or tuple(latest[whose][1:]) == values, (about, whose, latest[whose], values)


class StoreWorker:
    """The process that does steps in children which fail."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __call__(self, steps: list[Step], at: int = 0, kind: int = 0, code: int = 0, **fields: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"steps": steps, "at": at, "kind": kind, "code": code, **fields}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process ended"
        answer: dict[str, Any] = json.loads(line)
        assert "error" not in answer, (order, answer["error"])
        assert answer.get("look", 0) == 0, (order, answer["seen"])
        return answer


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, built_once: BuiltOnce) -> Iterator[StoreWorker]:
    library = built_once(
        "faults", lambda folder: compile_shared(folder / "faults.so", [SOURCES / "faults.c"], "-ldl", "-lpthread")
    )
    memory = Path("/dev/shm")  # thousands of files are made durable
    folder = tmp_path_factory.mktemp("oracle")
    if os.access(memory, os.W_OK):
        folder = memory / f"whorl-oracle-{os.getpid()}"
        folder.mkdir()
    command = [sys.executable, str(WORKER), str(folder), str(library / "faults.so")]
    environment = os.environ | {"LD_PRELOAD": str(library / "faults.so")}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        try:
            yield StoreWorker(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
            subprocess.run(["rm", "-r", str(folder)], check=True)


@pytest.mark.parametrize("seed", sample(range(60), short=1))
def test_the_store_holds_what_a_plain_table_says(worker: StoreWorker, seed: int) -> None:
    program, written = Program(seed), PlainTable()
    before = program.steps(9)
    written.follow(before, worker(before, keep=True)["log"], seed)
    was_pruned = program.pruned
    steps = program.steps(5)
    log = worker(steps)
    check(log, written, steps, seed)
    ((_, operations),) = [words for words in log["log"] if words[0] == "operations"]
    points = [(at, kind) for at in range(1, operations + 1) for kind in KINDS]
    random.Random(seed).shuffle(points)
    for at, kind in points[: count(2, short=1)]:
        about = (seed, at, kind)
        intruder = Program(1000 + seed)
        intruder.pruned = was_pruned
        intruding = [as_another_host(step) for step in intruder.steps(3)]
        answer = worker(steps, at, *KINDS[kind], intruder=intruding)
        check(answer, written, steps, about, theirs=intruding, kind=kind, at=at)


def rows(*keys: str, power: int = 1) -> list[list[Any]]:
    """Rows of keys like "A 60": the GPU, "-" for none, and the second."""
    split = [key.split() for key in keys]
    return [["c", None if gpu == "-" else gpu, int(second), power, power % 8, None] for gpu, second in split]


D = DAY_S
BEFORE: list[Step] = [
    {"do": "append", "name": "b1", "rows": rows("A 0", "A 60", "B 0", "- 0", power=1)},
    {"do": "journal", "name": "b2", "writer": "n1", "rows": rows("A 1", f"A {D}", power=2)},
    {"do": "journal", "name": "b3", "writer": "n2", "rows": rows("A 2", f"A {D + 1}", power=3)},
    {"do": "seal", "writer": "n1"},
    {"do": "correct", "name": "b4", "rows": rows("A 0", f"A {D}", power=4)},
    {"do": "journal", "name": "b5", "writer": "n1", "rows": rows("B 60", f"B {D}", power=5)},
]
"""Sealed rows, a correction that waits, a journal that a dead process left, and another with rows of the same GPU."""
PROGRAM: list[Step] = [
    {"do": "append", "name": "p1", "rows": rows("A 0", "C 0", "- 60", f"C {D}", power=6)},
    {"do": "journal", "name": "p2", "writer": "n1", "rows": rows("A 2", "C 1", f"A {D + 2}", power=7)},
    {"do": "publish", "writer": "n1"},
    {"do": "journal", "name": "p3", "writer": "n2", "rows": rows("C 1", f"A {D + 2}", f"A {D + 3}", power=8)},
    {"do": "journal", "name": "p4", "writer": "n1", "rows": rows("C 1", f"A {D + 3}", "C 2", power=9)},
    {"do": "publish", "writer": "n2"},
    {"do": "correct", "name": "p5", "rows": rows("A 60", f"A {D}", power=10)},
    {"do": "publish", "writer": "n1"},
    {"do": "seal", "writer": "n1"},
    {"do": "seal", "writer": "n2"},
    {"do": "append", "name": "p6", "rows": rows("A 1", f"A {D + 4}", power=11)},
    {"do": "read"},
    {"do": "compact"},
    {"do": "journal", "name": "p7", "writer": "n1", "rows": rows(f"A {D + 2}", f"A {D + 5}", power=12)},
    {"do": "correct", "name": "p8", "rows": rows(f"A {D + 1}", power=13)},
    {"do": "prune"},
    {"do": "append", "name": "p9", "rows": rows(f"A {D + 5}", f"B {D + 1}", power=14)},
    {"do": "journal", "name": "p10", "writer": "n2", "rows": rows(f"B {D + 1}", f"B {D + 2}", power=15)},
    {"do": "close", "writer": "n2"},
    {"do": "compact"},
]
INTRUDER: list[Step] = [
    {"do": "append", "name": "i1", "rows": rows("A 0", f"A {D}", power=1)},
    {"do": "journal", "name": "i2", "writer": "other", "rows": rows("A 0", f"A {D + 1}", power=2)},
    {"do": "compact"},
]


SWITCHES = r"(rename|unlink)\S* (?!\S*(/\.tmp|\.json|/\*)$)|renameat pending|linkat replaced"
"""The operations of which readers may see the effect."""
DEADLY = "(append renameat runs|seal unlink\\S* journal|(compact|prune) linkat replaced)"


@pytest.mark.long
def test_a_reader_at_any_moment_and_after_any_death_sees_a_plain_table(worker: StoreWorker) -> None:
    written = begin(worker)
    long = is_all()
    expected = {
        "living": SWITCHES if long else f"^(append|publish|seal|compact|prune) {SWITCHES}",
        "dead": SWITCHES if long else DEADLY,
        "most": 1 + long,
        "few": not long,
    }
    answer = worker(PROGRAM, kind=WATCHED, wanted=expected)
    assert answer["status"] == 0
    for moment in answer["moments"]:
        table = copy.deepcopy(written)
        table.follow(PROGRAM, answer["log"][: moment["lines"]], moment["about"])
        for label, view in (moment.get("living", {}) | moment.get("dead", {})).items():
            table.judge(view, (moment["about"], label))


def begin(worker: StoreWorker) -> PlainTable:
    """Make the store that `PROGRAM` begins with."""
    table = PlainTable()
    table.follow(BEFORE, worker(BEFORE, keep=True)["log"], "before")
    return table


HOST = "another host meanwhile, locks lost"
FAILING = ("killed in the middle", "killed with its machine", "disk full from then on", "one error of the disk")
# Kinds of operations, as store_worker.py names them, at which planted faults of the store are found.
CHOSEN = {"journal fdatasync journal/*.journal": "one error of the disk", "compact linkat replaced/*.parquet": HOST}


@pytest.mark.long
def test_a_failing_operation_of_each_kind_and_another_host_lose_nothing(worker: StoreWorker) -> None:
    """Where no lock holds: with another host, at every operation that others see; else in the middle of each kind."""
    written = begin(worker)
    nobody = {"living": "never", "dead": "never", "most": 0, "few": True}
    answer = worker(PROGRAM, kind=WATCHED, wanted=nobody, lockless=True)
    numbers: dict[str, list[int]] = {}
    for number, kind in answer["operations"]:
        numbers.setdefault(kind, []).append(number)
    points = [(kind, fault, ats[len(ats) // 2]) for kind, ats in numbers.items() for fault in FAILING]
    points += [(kind, HOST, at) for kind, ats in numbers.items() if re.search("rename|link", kind) for at in ats]
    chosen = [
        (kind, fault, numbers[kind][-1 if fault == HOST else len(numbers[kind]) // 2]) for kind, fault in CHOSEN.items()
    ]
    random.Random(34).shuffle(points)
    several = chosen + points[: None if is_all() else 2] if is_long() else chosen[-1:]
    for kind, fault, at in dict.fromkeys(several):
        intruding = [as_another_host(step) for step in INTRUDER]
        answer = worker(PROGRAM, at, *KINDS[fault], intruder=intruding, lockless=True)
        check(answer, written, PROGRAM, (at, kind, fault), theirs=intruding, kind=fault, at=at)


def as_another_host(step: Step) -> Step:
    """The step as another host does it: on other GPUs, with journals of other names, and no pruning."""
    rows = [[cluster, f"{gpu}2", *figures] for cluster, gpu, *figures in step.get("rows", ())]
    do = {"prune": "compact", "correct": "append"}.get(step["do"], step["do"])
    if do == "append" and not rows:
        do = "compact"
    return step | {"do": do, "rows": rows, "name": "other" + step.get("name", ""), "writer": "other"}


def check(
    answer: dict[str, Any],
    written: PlainTable,
    steps: list[Step],
    about: object,
    *,
    theirs: list[Step] | None = None,
    kind: str = "",
    at: int = 0,
) -> None:
    """Whether the store holds what the plain table says after further steps, of which operation `at` failed."""
    assert answer["status"] == (-9 if "killed" in kind else 0), (about, answer["log"])
    table = copy.deepcopy(written)
    log = answer["log"]
    if ["intruder"] in log:  # its lines stand together: the other process waits meanwhile
        begin = log.index(["intruder"])
        end = next(at for at in range(begin, len(log)) if log[at][0] == "operations") + 1
        assert theirs is not None
        table.follow(theirs, log[begin + 1 : end], about)
        log = log[:begin] + log[end:]
        table.certain = False
    table.follow(steps, log, about, fatal=at if "from then on" in kind else None, once=kind.startswith("one error"))
    for label in ("at once", "in order"):
        table.judge(answer["seen"][label], (about, label))
