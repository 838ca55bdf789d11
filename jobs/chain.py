"""A chain of batch jobs: one training that outlives the time limit of a job, handed from link to link without a gap.

A chain belongs to a user. Its driver, `run_chain`, submits the next link when the wait that is predicted for it reaches
the time that the running link has left. The successor, once it starts, asks its predecessor to checkpoint, waits until
that has left, and goes on: `chain.sh`, which carries the user's script.

The driver may be killed at any moment and run again. A link's number is written to the chain's folder before it is
submitted, and stands in the job's comment with the chain's own id: so the next driver finds a job in the queue or in
the accounts that the last one could not note. sbatch inherits the lock of the folder, so that a job that is on its way
is waited for. Of two jobs for one link, only the first to start would run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from ..errors import InputError, SchedulerError, StoreError
from ..store.system.locks import Lock, locked
from .forecast import Forecast, Forecaster, JobShape, Policy, limit_seconds
from .scheduler import ENDED, QueuedJob, Refusal
from .slurm import Slurm

T = TypeVar("T")

MARK = "whorl-chain"
"""What the comment of each job begins with: `whorl-chain:CHAIN:LINK`."""
MORE = 75
"""The exit status of a script that has more to do: EX_TEMPFAIL of sysexits.h, "try again"."""
AT_ONCE_S = 60.0
"""Two links one after the other that each ended sooner than this end the chain."""
PATIENCE_S = 600.0
"""So long a scheduler may refuse, or not answer."""
SETTLE_S = 20.0
"""So long a job is looked for that Slurm may have taken without an answer."""
_FIRST_S, _LONGEST_S, _GROWS = 1.0, 60.0, 1.5  # pauses between two looks
_AFTER_LIMIT_S = 300  # Slurm may let a job run a little longer than its limit
_WRAPPER = Path(__file__).with_name("chain.sh")
_BY_TERM = "TERM"  # the signal by which Slurm ends jobs
# Of a job around the driver, as in a step or a scrontab: the links are jobs of their own.
_OF_A_JOB = tuple(f"SLURM_{word}" for word in ("CPU", "GPU", "JOB", "MEM", "N", "STEP", "TASK", "TRES"))


class LinkEnd(StrEnum):
    """How a link ended."""

    DONE = "done"
    """Its script ended with status 0, and nobody had asked it to checkpoint."""
    CHECKPOINT = "checkpoint"
    """It was asked to checkpoint and left, or its script says with status 75 that there is more to do."""
    TIME_LIMIT = "time limit"
    PREEMPTED = "preempted"
    """For good: a job that is requeued stays the same link."""
    NODE_FAILURE = "node failure"
    CANCELLED = "cancelled"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Nothing says how it ended."""


_GOES_ON = frozenset({LinkEnd.CHECKPOINT, LinkEnd.TIME_LIMIT, LinkEnd.PREEMPTED, LinkEnd.NODE_FAILURE})
_BY_STATE = {
    "CANCELLED": LinkEnd.CANCELLED,
    "TIMEOUT": LinkEnd.TIME_LIMIT,
    "PREEMPTED": LinkEnd.PREEMPTED,
    "NODE_FAIL": LinkEnd.NODE_FAILURE,
    "BOOT_FAIL": LinkEnd.NODE_FAILURE,
    "DEADLINE": LinkEnd.FAILED,
    "OUT_OF_MEMORY": LinkEnd.FAILED,
    "REVOKED": LinkEnd.FAILED,
}


@dataclass(frozen=True, slots=True)
class Link:
    """A job of the chain. Times are seconds since 1970."""

    number: int
    """From 1."""
    submitted_s: float
    job: str | None = None
    """None as long as it is not known whether Slurm took it."""
    state: str = ""
    """As Slurm spells it."""
    start_s: float | None = None
    end_s: float | None = None
    """When it ended, or would reach its time limit."""
    end: LinkEnd | None = None
    """None as long as it waits or runs."""
    detail: str = ""
    """Why it waits, or how it ended."""

    @property
    def waits(self) -> bool:
        return self.end is None and self.job is not None and not self.runs

    @property
    def runs(self) -> bool:
        return self.end is None and self.state in ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING")

    @property
    def ended_at_once(self) -> bool:
        return self.end is not None and (self.end_s or 0.0) - (self.start_s or 0.0) < AT_ONCE_S


@dataclass(frozen=True, slots=True)
class Until:
    """How long a chain goes on: until the script is done, for a number of links, or until a time."""

    links: int | None = None
    time_s: float | None = None

    @property
    def done(self) -> bool:
        return self.links is None and self.time_s is None

    def reached(self, links: int, now_s: float) -> bool:
        """Whether no further link is due after so many."""
        return links >= (self.links or math.inf) or now_s >= (self.time_s or math.inf)


@dataclass(frozen=True, slots=True)
class ChainOptions:
    """What is chained, and how."""

    script: Path
    until: Until = field(default_factory=Until)
    policy: Policy = field(default_factory=Policy)
    signal: str | None = "USR1"
    """What asks a link to checkpoint; None: its successor waits until it ends by itself."""
    sbatch: tuple[str, ...] = ()
    """Further options of sbatch."""
    folder: Path | None = None
    """The chain's folder; SCRIPT.chain where it is left out."""
    once: bool = False
    """Do what is due, and end."""
    resume: bool = False
    """Go on with a chain that has ended."""
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True)
class BatchScript:
    """A user's script for sbatch, read."""

    path: Path
    header: str
    """Its lines of comments at the top, in which sbatch looks for options, without the first."""
    text: str
    interpreter: str
    """The words of the shell that run it."""
    shape: JobShape
    comment: str | None
    """What the user has as the jobs' comment."""


@dataclass
class ChainState:
    """What the chain's folder has: written before each submission, so that no driver needs a memory."""

    chain: str
    script: str
    directory: str
    """Where sbatch is run."""
    user: int
    links: dict[int, Link] = field(default_factory=dict)
    end: LinkEnd | None = None
    """How the chain ended; None as long as it goes on."""
    reason: str = ""
    first_link: int = 1
    """The first one since the chain was last resumed."""
    unsure_s: float | None = None
    """When Slurm gave no answer to the last submission."""

    @property
    def newest(self) -> Link | None:
        return self.links[max(self.links)] if self.links else None

    def before(self, link: Link) -> Link | None:
        return self.links.get(link.number - 1)


Progress = Callable[[str], None]
"""Is told what goes on, a sentence each time that it changes."""


def read_script(path: Path, slurm: Slurm, options: Sequence[str] = ()) -> BatchScript:
    """Read a user's script and what it asks Slurm for; `options` of sbatch count more, and so do its variables.

    Raises InputError where it cannot be read, is no script, is an array or has no time limit.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the script {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    first, _, rest = text.partition("\n")
    if not first.startswith("#!"):
        raise InputError(f"{path} is no script that sbatch takes: its first line must be like #!/bin/bash")
    header = list(_header(rest))
    words = [word for line in header if line.startswith("#SBATCH") for word in _words(path, line[7:])]
    asked = _sbatch_options(words, {})
    chosen = _sbatch_options(options, {**vars(asked), **_of_environment(slurm.environment)})
    if chosen.array or any(re.match(r"#SBATCH\s+(hetjob|packjob)", line) for line in header):
        raise InputError(f"{path} is an array or a job of several parts: a chain takes scripts of one job")
    partition = chosen.partition and str(chosen.partition).partition(",")[0]
    limit_s = _limit(path, chosen.time, partition, slurm)
    nodes = re.match(r"\d+", chosen.nodes or "")
    shape = JobShape(nodes=int(nodes[0]) if nodes else 1, limit_s=limit_s, partition=partition)
    interpreter = shlex.join(first[2:].split(None, 1)) if first[2:].strip() else "/bin/sh"
    return BatchScript(path.resolve(), "\n".join(header), text, interpreter, shape, chosen.comment)


def _header(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            return
        yield line


def _words(path: Path, line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise InputError(f"{path}: the line `#SBATCH{line}` has a quote without its end") from error


def _sbatch_options(words: Sequence[str], defaults: Mapping[str, object]) -> argparse.Namespace:
    """The options of sbatch that a chain needs to know, of all that are there."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    for short, name in (("-t", "time"), ("-N", "nodes"), ("-p", "partition"), ("-a", "array")):
        parser.add_argument(short, f"--{name}")
    parser.add_argument("--comment")
    parser.set_defaults(**defaults)
    try:
        return parser.parse_known_args(list(words))[0]
    except argparse.ArgumentError as error:
        raise InputError(f"the options of sbatch cannot be read: {error}") from error


def _of_environment(variables: Mapping[str, str]) -> dict[str, str]:
    names = {"time": "SBATCH_TIMELIMIT", "partition": "SBATCH_PARTITION", "array": "SBATCH_ARRAY_INX"}
    return {option: variables[name] for option, name in names.items() if variables.get(name)}


def _limit(path: Path, text: str | None, partition: str | None, slurm: Slurm) -> float:
    """The time limit in seconds: that of the script, else the one that its partition gives. Raises InputError."""
    if text:
        limit_s = limit_seconds(text)
        if not math.isfinite(limit_s):
            raise InputError(f"{path} asks for a job without a time limit: there is nothing to chain")
        return limit_s
    chosen = [
        row for row in slurm.partitions().values() if (row.default if partition is None else row.name == partition)
    ]
    limit_s = min(60 * chosen[0].usual_min, 60 * chosen[0].longest_min) if chosen else math.inf
    if not math.isfinite(limit_s):
        raise InputError(
            f"{path} has no time limit, and its partition gives none: write `#SBATCH --time=24:00:00` at its top"
        )
    return limit_s


# -- the chain's folder ---------------------------------------------------------------------------------------------


def open_state(options: ChainOptions, *, write: bool) -> tuple[Path, ChainState]:
    """The folder of a chain, and what stands there; a new chain where nothing does.

    Raises InputError where the folder is of another script or another user, StoreError where it cannot be used.
    """
    script = options.script.resolve()
    folder = (options.folder or script.with_name(f"{script.name}.chain")).absolute()
    state = ChainState(uuid4().hex[:10], str(script), str(Path.cwd()), os.geteuid())
    if re.search(r"[\s'\"\\]", str(folder)):
        raise InputError(f"the chain's folder {str(folder)!r} has a blank or a quote: give another --folder")
    try:
        if write:
            folder.mkdir(parents=True, exist_ok=True)
        content = json.loads((folder / "chain.json").read_text())
    except FileNotFoundError:
        return folder, state
    except (OSError, ValueError) as error:
        raise StoreError(f"the chain's folder {folder} cannot be used: {error}") from error
    links = {
        int(number): Link(**link | {"end": link["end"] and LinkEnd(link["end"])})
        for number, link in content.pop("links").items()
    }
    del content["schema"]
    state = ChainState(**content | {"links": links, "end": content["end"] and LinkEnd(content["end"])})
    if state.script != str(script):
        raise InputError(f"{folder} is the chain of {state.script}: give this one a --folder of its own")
    if state.user != os.geteuid():
        raise InputError(f"{folder} is the chain of another user: give yours a --folder of its own")
    return folder, state


def _save(folder: Path, state: ChainState) -> None:
    path = folder / "chain.json"
    text = json.dumps({"schema": "whorl.chain/1"} | asdict(state), indent=1)
    try:
        with path.with_suffix(".new").open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        path.with_suffix(".new").replace(path)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}; nothing more was submitted") from error


def _noted(folder: Path, number: int, what: str) -> list[str]:
    """What a link wrote of itself: its job, the time, and at its end the status and signals. Empty where it did not."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return (folder / f"link-{number:04d}.{what}").read_text().split()
    return []


# -- the driver -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainReport:
    """How far a chain is."""

    state: ChainState
    folder: Path
    shape: JobShape
    forecast: Forecast | None
    """What a further link would wait; None where nobody asked."""
    notes: tuple[str, ...] = ()

    @property
    def interruptions_s(self) -> dict[int, float]:
        """Link -> seconds from the end of the one before to its start: negative where both ran. Shape: links - 1."""
        times = {}
        for number, link in self.state.links.items():
            before = self.state.before(link)
            if link.start_s is not None and before is not None and before.end is not None and before.end_s is not None:
                times[number] = link.start_s - before.end_s
        return times


def plan_chain(slurm: Slurm, options: ChainOptions) -> ChainReport:
    """What a chain would do: nothing is submitted or written. Raises InputError, SchedulerError."""
    slurm.check()
    script = read_script(options.script, slurm, options.sbatch)
    folder, state = open_state(options, write=False)
    forecaster = Forecaster(slurm, script.shape, options.policy)
    return ChainReport(state, folder, script.shape, forecaster.ask())


def run_chain(slurm: Slurm, options: ChainOptions, progress: Progress | None = None) -> ChainReport:
    """Drive a chain until it ends, or with `once` do what is due.

    Raises InputError for a script that cannot be chained, StoreError where another driver has the chain, SchedulerError
    where Slurm is not here, does not answer, or refuses; jobs that were submitted stay in the queue.
    """
    slurm.check()
    script = read_script(options.script, slurm, options.sbatch)
    folder, _ = open_state(options, write=True)
    # sbatch of a driver that was killed holds the lock until it has ended.
    wait_s = slurm.timeout_s + 5.0
    with locked(folder / "lock", f"the chain of {script.path}", wait_s=wait_s) as lock:
        _, state = open_state(options, write=True)
        if options.resume and state.end is not None:
            state.end, state.reason, state.first_link = None, "", max(state.links, default=0) + 1
        return _Driver(
            slurm, options, script, folder=folder, state=state, lock=lock, progress=progress or (lambda _: None)
        ).run()


class _Driver:
    def __init__(
        self,
        slurm: Slurm,
        options: ChainOptions,
        script: BatchScript,
        *,
        folder: Path,
        state: ChainState,
        lock: Lock,
        progress: Progress,
    ) -> None:
        self._slurm, self._options, self._script = slurm, options, script
        self._folder, self._state, self._lock = folder, state, lock
        self._progress, self._sentence = progress, ""
        self._forecaster = Forecaster(slurm, script.shape, options.policy)
        self._forecast: Forecast | None = None
        self._refusal: str | None = None
        self._answered_s = time.monotonic()  # when Slurm last answered, and took a job where one was due

    def run(self) -> ChainReport:
        pause_s, earlier = _FIRST_S, None
        while self._state.end is None:
            self._look()
            self._end_where_due()
            if self._state.end is None:
                self._submit_where_due()
            self._tell()
            if self._options.once or self._state.end is not None:
                break
            links = self._state.links.copy()
            pause_s = _FIRST_S if links != earlier else min(pause_s * _GROWS, _LONGEST_S)
            earlier = links
            time.sleep(min(pause_s, max(self._until_due_s(), _FIRST_S)))
        notes = (f"Slurm takes no job at this moment: {self._refusal}",) if self._refusal else ()
        return ChainReport(self._state, self._folder, self._script.shape, self._forecast, notes)

    # -- looking --

    def _look(self) -> None:
        """Bring the links up to date. The queue is asked before the links' notes are read: no end is missed between."""
        jobs = self._patiently(lambda: self._slurm.queue(user=os.geteuid()))
        queued = self._of_chain(jobs)
        links = self._state.links
        for number in sorted(queued.keys() | links.keys()):
            link = links.get(number) or Link(number, time.time())
            if link.end is not None:
                continue
            job = queued.get(number)
            ended = _noted(self._folder, number, "ended")
            if job is not None and not job.ended:
                links[number] = replace(
                    link, job=job.job, state=job.state, start_s=_epoch(job.start), end_s=_epoch(job.end),
                    detail=job.reason,
                )  # fmt: skip
            elif job is not None:
                link = replace(link, job=job.job, start_s=_epoch(job.start), end_s=_epoch(job.end))
                links[number] = self._ended(link, job.state, ended)
            else:
                self._look_further(link, ended)
        _save(self._folder, self._state)

    def _of_chain(self, jobs: Sequence[QueuedJob]) -> dict[int, QueuedJob]:
        """The chain's jobs by link. Of two for one link, the one that runs as it, else the first."""
        marked: dict[int, QueuedJob] = {}
        for job in sorted(jobs, key=lambda job: int(job.job) if job.job.isdigit() else math.inf):
            match = re.match(rf"{MARK}:{self._state.chain}:(\d+)(?:\s|$)", job.comment)
            if match and job.user == self._state.user:
                number = int(match[1])
                if number not in marked or _noted(self._folder, number, "begun")[:1] == [job.job]:
                    marked[number] = job
        return marked

    def _look_further(self, link: Link, ended: Sequence[str]) -> None:
        """A link that the queue does not show: it ended some time ago, or was never taken."""
        begun = _noted(self._folder, link.number, "begun")
        row = self._accounted(link)
        job = link.job or (row or {}).get("JobIDRaw") or next(iter(begun), None)
        if job is None:
            unsure_s = self._state.unsure_s
            if unsure_s is None or time.time() - unsure_s > SETTLE_S:
                del self._state.links[link.number]  # Slurm never took it
                self._state.unsure_s = None
            return
        start_s = _number((row or {}).get("Start")) or (float(begun[1]) if begun else link.start_s)
        end_s = _number((row or {}).get("End")) or (float(ended[1]) if ended else None)
        link = replace(link, job=job, start_s=start_s, end_s=end_s or link.end_s)
        state = (row or {}).get("State", "").partition(" ")[0]
        if state and state not in ENDED:
            return  # the accounts are behind
        self._state.links[link.number] = self._ended(link, state, ended, (row or {}).get("ExitCode", ""))

    def _accounted(self, link: Link) -> Mapping[str, str] | None:
        """What the accounts have of a link's job, found by its number or by the comment that it was submitted with."""
        since = datetime.fromtimestamp(link.submitted_s - 7200.0)  # noqa: DTZ006  sacct reads the times of this clock
        mark = re.compile(rf"{MARK}:{self._state.chain}:{link.number}(?:\W|$)")
        names = ("JobIDRaw", "State", "ExitCode", "Start", "End", "Comment", "SubmitLine")
        words = ("sacct", "-X", "-n", "-P", f"--starttime={since:%Y-%m-%dT%H:%M:%S}", "-o", ",".join(names))
        with contextlib.suppress(SchedulerError):
            for line in self._slurm.call(*words).splitlines():
                row = dict(zip(names, line.split("|", len(names) - 1), strict=False))
                if row["JobIDRaw"] == link.job or mark.search(line):
                    return row
        return None

    def _ended(self, link: Link, state: str, noted: Sequence[str], exit_code: str = "") -> Link:
        """The link with how it ended, from Slurm's state and what the link wrote of itself."""
        own = noted if noted[:1] == [link.job] else []
        status = int(own[2]) if len(own) > 2 else None
        signals = own[3].split(",") if len(own) > 3 else []
        asked = [name for name in signals if name in ("USR1", "USR2", self._options.signal) and name != _BY_TERM]
        end_s = float(own[1]) if own and link.end_s is None else link.end_s
        link = replace(link, state=state, end_s=end_s)
        if state in _BY_STATE:
            return replace(link, end=_BY_STATE[state], detail=state.lower().replace("_", " "))
        if status is None and state == "COMPLETED":
            status = 0
        if status is None and state:
            exit_code = exit_code or self._exit_code(link.job)
            match = re.match(r"(\d+):(\d+)", exit_code)
            if match:
                status = int(match[1]) or (128 + int(match[2]) if int(match[2]) else 0)
        if asked:
            return replace(link, end=LinkEnd.CHECKPOINT, detail=f"asked by SIG{asked[-1]}")
        if status == MORE:
            return replace(link, end=LinkEnd.CHECKPOINT, detail=f"status {MORE}: more to do")
        if status is None or (not state and _BY_TERM in signals):
            detail = "nothing says how it ended: the queue and the accounts have forgotten it"
            return replace(link, end=LinkEnd.UNKNOWN, detail=detail)
        if status == 0:
            return replace(link, end=LinkEnd.DONE, detail="status 0")
        return replace(link, end=LinkEnd.FAILED, detail=f"status {status}{self._last_line(link.job)}")

    def _exit_code(self, job: str | None) -> str:
        with contextlib.suppress(SchedulerError):
            match = re.search(r"\bExitCode=(\S+)", self._slurm.call("scontrol", "-o", "show", "job", job or ""))
            return match[1] if match else ""
        return ""

    def _last_line(self, job: str | None) -> str:
        """The last line of a job's output, for a sentence."""
        with contextlib.suppress(SchedulerError, OSError):
            text = self._slurm.call("scontrol", "-o", "show", "job", job or "")
            match = re.search(r"\bStd(?:Err)=(\S+)", text) or re.search(r"\bStdOut=(\S+)", text)
            if match:
                lines = Path(match[1]).read_text(errors="replace").split("\n")
                line = next((line.strip() for line in reversed(lines) if line.strip()), "")
                return f", its output ends with: {line[:200]}" if line else f", its output {match[1]} is empty"
        return ""

    def _patiently(self, ask: Callable[[], T]) -> T:
        """What Slurm answers, in the end: a controller that is busy or restarts is waited for."""
        pause_s = _FIRST_S
        while True:
            try:
                answer = ask()
            except SchedulerError as error:
                waited_s = time.monotonic() - self._answered_s
                if error.absent or self._options.once or waited_s + pause_s > self._options.patience_s:
                    raise SchedulerError(
                        f"{error}; jobs that were submitted stay in the queue: run the command again to go on",
                        absent=error.absent,
                    ) from error
                self._say(str(error))
                time.sleep(pause_s)
                pause_s = min(pause_s * _GROWS, _LONGEST_S)
            else:
                self._answered_s = time.monotonic()
                return answer

    # -- the end --

    def _end_where_due(self) -> None:
        newest = self._state.newest
        if newest is None or newest.job is None:
            return
        before = self._state.before(newest)
        if newest.waits and before is not None and before.number >= self._state.first_link and self._final(before):
            self._cancel(newest)
            self._finish(before)
        elif newest.end is not None and newest.number >= self._state.first_link:
            if self._final(newest) or self._options.until.reached(newest.number, time.time()):
                self._finish(newest)
            elif newest.ended_at_once and before is not None and before.number >= self._state.first_link:
                handed_over = before.end_s is None or newest.start_s is None or before.end_s > newest.start_s
                if before.ended_at_once and not handed_over:
                    self._finish(replace(newest, end=LinkEnd.FAILED, detail=(
                        f"it and the link before ended within {AT_ONCE_S:.0f} s, so no more are sent"
                        f"{self._last_line(newest.job)}"
                    )))  # fmt: skip

    def _final(self, link: Link) -> bool:
        """Whether nothing comes after a link that ended so."""
        if link.end is LinkEnd.DONE:
            return self._options.until.done
        return link.end is not None and link.end not in _GOES_ON

    def _finish(self, link: Link) -> None:
        end = LinkEnd.DONE if link.end in _GOES_ON else link.end
        self._state.end = end
        self._state.reason = f"link {link.number} (job {link.job}): {link.end}, {link.detail}"
        _save(self._folder, self._state)

    def _cancel(self, link: Link) -> None:
        """Cancel a link that waits; one that has started meanwhile sees by itself that nothing is left to do."""
        assert link.job is not None
        for job in self._slurm.queue(user=self._state.user):
            if job.job == link.job and self._of_chain([job]):
                self._slurm.call("scancel", "--state=PENDING", job.job)
        cancelled = replace(link, end=LinkEnd.CANCELLED, detail="by the chain: its predecessor was the last")
        self._state.links[link.number] = cancelled

    # -- submitting --

    def _submit_where_due(self) -> None:
        newest = self._state.newest
        if newest is None:
            self._submit(1, None)
        elif newest.end is not None:
            self._submit(newest.number + 1, None)
        elif newest.runs and newest.end_s is not None and not self._options.until.reached(newest.number, time.time()):
            self._forecast = self._patiently(self._forecaster.ask)
            if self._until_due_s() <= 0:
                self._submit(newest.number + 1, newest)

    def _until_due_s(self) -> float:
        """Seconds until the next link is to be submitted, as far as is known."""
        newest = self._state.newest
        if newest is None or not newest.runs or self._forecast is None or self._forecast.lead_s is None:
            return math.inf
        return (newest.end_s or math.inf) - time.time() - self._forecast.lead_s

    def _submit(self, number: int, predecessor: Link | None) -> None:
        self._refusal = None
        self._state.links[number] = Link(number, time.time())
        _save(self._folder, self._state)
        text = _wrapped(self._script, self._options, self._state, self._folder, number=number, predecessor=predecessor)
        with contextlib.chdir(self._state.directory):
            answer = self._slurm.submit(
                text, keep=(self._lock.handle,), options=(*self._options.sbatch, f"--comment={self._comment(number)}"),
                without=_OF_A_JOB,
            )  # fmt: skip
        if answer.job is not None:
            self._state.links[number] = Link(number, time.time(), answer.job, "PENDING")
            self._answered_s = time.monotonic()
        elif answer.refusal is Refusal.UNSURE:
            self._state.unsure_s = time.time()
        else:
            del self._state.links[number]
        _save(self._folder, self._state)
        if answer.job is None:
            self._refusal = answer.message
            lasting = answer.refusal not in (Refusal.LATER, Refusal.UNSURE)
            waited_s = time.monotonic() - self._answered_s
            if lasting or (predecessor is None and waited_s > self._options.patience_s):
                raise SchedulerError(f"Slurm refused the job of link {number}: {answer.message}")

    def _comment(self, number: int) -> str:
        return " ".join(filter(None, (f"{MARK}:{self._state.chain}:{number}", self._script.comment)))

    # -- telling --

    def _tell(self) -> None:
        newest = self._state.newest
        if self._state.end is not None:
            self._say(f"the chain has ended: {self._state.reason}")
        elif self._refusal is not None:
            self._say(f"Slurm takes no job at this moment: {self._refusal}")
        elif newest is not None:
            doing = "runs" if newest.runs else f"waits ({newest.detail or newest.state})"
            self._say(f"link {newest.number}, job {newest.job}, {doing}")

    def _say(self, sentence: str) -> None:
        if sentence != self._sentence:
            self._sentence = sentence
            self._progress(sentence)


def _wrapped(
    script: BatchScript,
    options: ChainOptions,
    state: ChainState,
    folder: Path,
    *,
    number: int,
    predecessor: Link | None,
) -> str:
    """What is submitted: the script's options and text within chain.sh."""
    values = {
        "job_name": shlex.quote(script.path.name),
        "header": script.header,
        "chain": state.chain,
        "link": str(number),
        "predecessor": predecessor.job or "" if predecessor else "",
        "latest": str(int((predecessor.end_s or 0) if predecessor else 0) + _AFTER_LIMIT_S),
        "signal": options.signal or "none",
        "until": "done" if options.until.done else "more",
        "more": str(MORE),
        "folder": str(folder),
        "delimiter": f"END-OF-SCRIPT-{uuid4().hex}",
        "script": script.text.removesuffix("\n"),
        "interpreter": script.interpreter,
    }
    return re.sub(r"@(\w+)@", lambda place: values[place[1]], _WRAPPER.read_text())


def _epoch(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _number(text: str | None) -> float | None:
    return float(text) if text and text.isdigit() else None
