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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from ..analysis.chains.policy import LeadPolicy
from ..errors import InputError, SchedulerError, StoreError
from ..store.system.locks import Lock, locked
from .forecast import Forecast, Forecaster, JobShape
from .scheduler import APART, ENDED, RUNNING, Partition, Patience, QueuedJob, Refusal, last_line
from .slurm import Slurm, fields_of, limit_seconds

MARK = "whorl-chain"  # what the comment of each job begins with: `whorl-chain:CHAIN:LINK`
MORE = 75  # the exit status of a script that has more to do: EX_TEMPFAIL of sysexits.h, "try again"
AT_ONCE_S = 60.0  # two links one after the other that each ended sooner than this end the chain
PATIENCE_S = 600.0  # so long Slurm may not answer, and its accounts may be behind its queue
SETTLE_S = 30.0  # so long after its submission a job is looked for that Slurm may have taken without an answer
_FIRST_S, _LONGEST_S, _GROWS = 1.0, 60.0, 1.5  # pauses between two looks
_ASKED_AGAIN_S, _ASKED_AT_LEAST_S = 600.0, 21_600.0  # between two predictions
_GRACE_S = 300  # Slurm may let a job run a little longer than its limit
_ACCOUNTED = ("JobIDRaw", "State", "ExitCode", "Start", "End", "Comment", "SubmitLine")
_WRAPPER = Path(__file__).with_name("chain.sh")
# Of a job around the driver, as in a step or a scrontab: the links are jobs of their own. And sbatch must not wait.
_HIDDEN = ("SBATCH_WAIT", *(f"SLURM_{word}" for word in ("CPU", "GPU", "JOB", "MEM", "N", "STEP", "TASK", "TRES")))


class LinkEnd(StrEnum):
    """How a link ended."""

    DONE = "done"  # its script ended with status 0, and nobody had asked it to checkpoint
    CHECKPOINT = "checkpoint"  # it was asked to checkpoint and left, or its script says by status 75: more to do
    TIME_LIMIT = "time limit"
    PREEMPTED = "preempted"  # for good: a job that is requeued stays the same link
    NODE_FAILURE = "node failure"
    CANCELLED = "cancelled"
    FAILED = "failed"
    UNKNOWN = "unknown"  # nothing says how it ended


_GOES_ON = frozenset({LinkEnd.CHECKPOINT, LinkEnd.TIME_LIMIT, LinkEnd.PREEMPTED, LinkEnd.NODE_FAILURE})
_BY_STATE = {
    "CANCELLED": LinkEnd.CANCELLED,
    "TIMEOUT": LinkEnd.TIME_LIMIT,
    "PREEMPTED": LinkEnd.PREEMPTED,
    **dict.fromkeys(("NODE_FAIL", "BOOT_FAIL"), LinkEnd.NODE_FAILURE),
    **dict.fromkeys(("DEADLINE", "OUT_OF_MEMORY", "REVOKED"), LinkEnd.FAILED),
}


@dataclass(frozen=True, slots=True)
class Link:
    """A job of the chain. Times are seconds since 1970."""

    number: int  # from 1
    submitted_s: float
    job: str | None = None  # None as long as it is not known whether Slurm took it
    state: str = ""  # as Slurm spells it
    start_s: float | None = None
    end_s: float | None = None  # when it ended, or would reach its time limit
    end: LinkEnd | None = None  # None as long as it waits or runs
    detail: str = ""  # why it waits, or how it ended
    predecessor: int | None = None  # the link that it takes over from; None if that had ended before
    settled: bool = False  # whether it had ended when the chain was resumed: its end counts no longer

    @property
    def waits(self) -> bool:
        return self.end is None and self.job is not None and not self.runs

    @property
    def runs(self) -> bool:
        return self.end is None and self.state in RUNNING

    @property
    def ended_at_once(self) -> bool:
        return self.end is not None and (self.end_s or 0.0) - (self.start_s or 0.0) < AT_ONCE_S

    def follows(self, earlier: Link) -> bool:
        """Whether it started when the other had ended."""
        return (earlier.end_s or 0.0) <= (self.start_s or 0.0)


@dataclass(frozen=True, slots=True)
class Until:
    """How long a chain goes on: until the script is done, or for a number of links, until a time, or for a time."""

    links: int | None = None
    time_s: float | None = None
    span_s: float | None = None  # from the submission of the first link, or of the first one after it was resumed

    @property
    def done(self) -> bool:
        return self == Until()

    def reached(self, links: Mapping[int, Link], now_s: float) -> bool:
        """Whether no further link is due after these, by number."""
        first_s = min((link.submitted_s for link in links.values() if not link.settled), default=now_s)
        time_s = min(self.time_s or math.inf, first_s + (self.span_s or math.inf))
        return max(links, default=0) >= (self.links or math.inf) or now_s >= time_s


@dataclass(frozen=True, slots=True)
class ChainOptions:
    """What is chained, and how."""

    script: Path
    until: Until = field(default_factory=Until)
    policy: LeadPolicy = field(default_factory=lambda: LeadPolicy.of_cost(0.5))
    signal: str | None = "USR1"  # what asks a link to checkpoint; None: its successor waits until it ends by itself
    sbatch: tuple[str, ...] = ()  # further options of sbatch
    folder: Path | None = None  # the chain's folder; SCRIPT.chain where it is left out
    progress: Callable[[str], None] | None = None  # is told what goes on, a sentence each time that it changes
    once: bool = False  # do what is due, and end
    resume: bool = False  # go on with a chain that has ended
    patience_s: float = PATIENCE_S


class ScriptEnd(NamedTuple):
    """What a link wrote when its script had ended."""

    time_s: float
    status: int
    signals: Sequence[str]  # those that it had got: USR1, TERM


@dataclass
class ChainState:
    """What the chain's folder has: written before each submission, so that no driver needs a memory."""

    chain: str
    script: str
    directory: str  # where sbatch is run
    user: int
    links: dict[int, Link] = field(default_factory=dict)
    end: LinkEnd | None = None  # how the chain ended; None as long as it goes on
    reason: str = ""
    missing_s: float | None = None  # since when neither the queue nor the accounts say how a link ended
    lead_s: float | None = None  # the wait that was predicted last: so long before its end a link gets its successor
    asked_s: float = 0.0  # when it was predicted

    @classmethod
    def from_json(cls, text: str) -> ChainState:
        """The state as `ChainFolder.save` wrote it. Raises ValueError, TypeError or KeyError for another text."""
        content = json.loads(text)
        content.pop("schema")
        links = [Link(**link | {"end": link["end"] and LinkEnd(link["end"])}) for link in content["links"].values()]
        end = content["end"] and LinkEnd(content["end"])
        return cls(**content | {"links": {link.number: link for link in links}, "end": end})

    @property
    def newest(self) -> Link | None:
        return self.links.get(max(self.links, default=0))

    @property
    def live(self) -> Link | None:
        """The newest link that waits or runs."""
        return self.links.get(max((number for number, link in self.links.items() if link.end is None), default=0))


class ChainFolder:
    """The folder of a chain: `state`, and what its links wrote of themselves."""

    def __init__(self, options: ChainOptions, *, write: bool) -> None:
        """Raises InputError where it is of another script or another user, StoreError where it cannot be used."""
        script = options.script.resolve()
        self.path = (options.folder or script.with_name(f"{script.name}.chain")).absolute()
        try:
            if write:
                self.path.mkdir(parents=True, exist_ok=True)
            self.state = ChainState.from_json((self.path / "chain.json").read_text())
        except FileNotFoundError:
            self.state = ChainState(uuid4().hex[:10], str(script), str(Path.cwd()), os.geteuid())
        except (OSError, ValueError, TypeError, KeyError) as error:
            why = getattr(error, "strerror", None) or f"its chain.json is damaged: {error}"
            raise StoreError(f"the chain's folder {self.path} cannot be used: {why}; set another folder=DIR") from error
        if self.state.script != str(script):
            raise InputError(f"{self.path} is the chain of {self.state.script}: set another folder=DIR")
        if self.state.user != os.geteuid():
            raise InputError(f"{self.path} is the chain of another user: set another folder=DIR")

    def save(self) -> None:
        """Write the state, whole and durable. Raises StoreError."""
        path = self.path / "chain.json"
        text = json.dumps({"schema": "whorl.chain/1"} | asdict(self.state), indent=1)
        try:
            with path.with_suffix(".new").open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            path.with_suffix(".new").replace(path)
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}; nothing more is submitted") from error

    def begun(self, number: int) -> tuple[str, float] | None:
        """The job that runs as this link, and when it began; None where it did not write that."""
        words = self._words(number, "begun")
        return (words[0], float(words[1])) if len(words) == 2 else None

    def ended(self, number: int, job: str | None) -> ScriptEnd | None:
        """How the script of a link ended in this job; None where it did not write that."""
        words = [*self._words(number, "ended"), ""]
        return ScriptEnd(float(words[1]), int(words[2]), words[3].split(",")) if words[0] == job else None

    def _words(self, number: int, event: str) -> list[str]:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return (self.path / f"link-{number:04d}.{event}").read_text().split()
        return []


@dataclass(frozen=True, slots=True)
class ChainReport:
    """How far a chain is."""

    folder: ChainFolder
    shape: JobShape
    forecast: Forecast | None  # what a further link would wait; None where it was not asked for
    notes: tuple[str, ...] = ()

    @property
    def interruptions_s(self) -> dict[int, float]:
        """Link -> seconds from the end of the one before to its start; negative where both ran."""
        links = self.folder.state.links
        return {
            number: link.start_s - before.end_s
            for number, link in links.items()
            if (before := links.get(number - 1)) is not None
            if link.start_s is not None and before.end is not None and before.end_s is not None
        }


def plan_chain(slurm: Slurm, options: ChainOptions) -> ChainReport:
    """What a chain would do: nothing is submitted or written. Raises InputError, SchedulerError."""
    slurm.check()
    shape = read_script(options.script, slurm, options.sbatch).shape
    folder = ChainFolder(options, write=False)
    return ChainReport(folder, shape, Forecaster(slurm, shape, options.policy, options.sbatch).ask(planned=True))


def run_chain(slurm: Slurm, options: ChainOptions) -> ChainReport:
    """Drive a chain until it ends, or with `once` do what is due.

    Raises InputError for a script that cannot be chained, StoreError where another driver has the chain, SchedulerError
    where Slurm is not here, does not answer, or refuses; jobs that were submitted stay in the queue.
    """
    slurm.check()
    script = read_script(options.script, slurm, options.sbatch)
    path = ChainFolder(options, write=True).path
    # sbatch of a driver that was killed holds the lock until it has ended.
    with locked(path / "lock", f"the chain of {script.path}", wait_s=slurm.timeout_s + 5.0) as lock:
        folder = ChainFolder(options, write=True)
        if not Path(folder.state.directory).is_dir():
            raise InputError(f"the chain was begun in {folder.state.directory}, which is gone: make that folder again")
        links = folder.state.links
        if options.resume and folder.state.end is not None:
            folder.state.end = None
            folder.state.links = {number: replace(link, settled=link.end is not None) for number, link in links.items()}
        elif not links and options.until.reached(links, time.time()):
            raise InputError("the time of --until has passed: nothing is submitted")
        return _Driver(slurm, options, script, folder, lock=lock).run()


class _Driver:
    def __init__(
        self, slurm: Slurm, options: ChainOptions, script: UserScript, folder: ChainFolder, *, lock: Lock
    ) -> None:
        self._slurm, self._options, self._script, self._folder, self._lock = slurm, options, script, folder, lock
        self._state = folder.state
        self._forecaster = Forecaster(slurm, script.shape, options.policy, options.sbatch)
        self._forecast: Forecast | None = None
        self._refusal = self._sentence = ""
        self._patience = Patience(0.0 if options.once else options.patience_s, self._say)

    def run(self) -> ChainReport:
        pause_s = _FIRST_S
        while self._state.end is None:
            earlier = self._state.links.copy()
            self._look()
            self._end_where_due()
            if self._state.end is None and self._state.missing_s is None:
                self._submit_where_due()
            self._tell()
            if self._options.once or self._state.end is not None:
                break
            pause_s = _FIRST_S if self._state.links != earlier else min(pause_s * _GROWS, _LONGEST_S)
            due_s = self._until_due_s()
            time.sleep(min(pause_s, max(due_s, _FIRST_S)) if due_s > 0 else pause_s)
        notes = [f"Slurm takes no job at this moment: {self._refusal}"] if self._refusal else []
        if Path(self._state.directory) != Path.cwd():
            another = "for another training in this folder, set another folder=DIR"
            notes.append(f"the chain was begun in {self._state.directory}, and its jobs run there; {another}")
        return ChainReport(self._folder, self._script.shape, self._forecast, tuple(notes))

    def _look(self) -> None:
        """Bring the links up to date. The queue is asked before the links' files are read: no end is missed between."""
        queued = self._of_chain(self._patience.ask(lambda: self._slurm.queue(user=self._state.user)))
        links, missing_s = self._state.links, self._state.missing_s
        earlier, traced = links.copy(), True
        for number in sorted(queued.keys() | links.keys()):
            link, job = links.get(number) or Link(number, time.time()), queued.get(number)
            if link.end is not None:
                continue
            if job is None:
                traced &= self._look_further(link)
                continue
            times = (None, None) if job.pending else (job.start, job.end)  # of one that waits they are expected ones
            start_s, end_s = (None if moment is None else moment.timestamp() for moment in times)
            link = replace(link, job=job.job, state=job.state, start_s=start_s, end_s=end_s, detail=job.reason)
            links[number] = self._ended(link) if job.ended else link
        self._state.missing_s = None if traced else self._state.missing_s
        if (links, self._state.missing_s) != (earlier, missing_s):
            self._folder.save()

    def _of_chain(self, jobs: Sequence[QueuedJob]) -> dict[int, QueuedJob]:
        """The chain's jobs by link. Of two for one link, the one that runs as it, else the first."""
        marked: dict[int, QueuedJob] = {}
        for job in sorted(jobs, key=lambda job: (len(job.job), job.job)):
            match = re.match(rf"{MARK}:{self._state.chain}:(\d+)(?:\s|$)", job.comment)
            if match and job.user == self._state.user:
                number = int(match[1])
                if number not in marked or (self._folder.begun(number) or ("",))[0] == job.job:
                    marked[number] = job
        return marked

    def _look_further(self, link: Link) -> bool:
        """Look for a link that the queue does not show: it ended some time ago, or was never taken. False: no trace."""
        row = self._accounted(link)
        begun_job, begun_s = self._folder.begun(link.number) or (None, link.start_s)
        job = link.job or (row or {}).get("JobIDRaw") or begun_job
        if job is None:
            if not 0 <= time.time() - link.submitted_s < SETTLE_S:
                del self._state.links[link.number]  # Slurm never took it
            return True
        script = self._folder.ended(link.number, job)
        state = (row or {}).get("State", "").partition(" ")[0]  # CANCELLED by 1000
        state = state if state in ENDED else ""  # the accounts are behind
        if row is not None and not state and (script is None or "TERM" in script.signals):
            self._state.missing_s = self._state.missing_s or time.time()
            if 0 <= time.time() - self._state.missing_s < self._options.patience_s:
                return False
        times = [row[name] if row and state else "" for name in ("Start", "End")]
        start_s, end_s = (float(text) if text.isdigit() else None for text in times)
        link = replace(link, job=job, state=state, start_s=start_s or begun_s, end_s=end_s or link.end_s)
        self._state.links[link.number] = self._ended(link, (row or {}).get("ExitCode") if state else None)
        return True

    def _accounted(self, link: Link) -> Mapping[str, str] | None:
        """What the accounts have of a link's job, found by its number or by the comment that it was submitted with.

        Empty where they do not have it or do not answer; None where Slurm keeps no accounts.
        """
        mark = re.compile(rf"{MARK}:{self._state.chain}:{link.number}(?:\W|$)")
        since = datetime.fromtimestamp(link.submitted_s - 60.0, UTC)
        try:
            columns = self._slurm.account_columns()  # the last two are not in every version
            names = [name for name in _ACCOUNTED if name in columns]
            lines = self._slurm.accounts(names, since, None, user=self._state.user).splitlines()
        except SchedulerError as error:
            return None if error.absent else {}
        for line in reversed(lines):  # the last try of a job that was requeued
            row = dict.fromkeys(_ACCOUNTED, "") | dict(zip(names, line.split(APART), strict=False))
            if row["JobIDRaw"] == link.job or (link.job is None and mark.search(line)):
                return row
        return {}

    def _ended(self, link: Link, exit_code: str | None = None) -> Link:
        """The link with how it ended, from Slurm's state and what the link wrote of itself."""
        assert link.job is not None
        script = self._folder.ended(link.number, link.job)
        if link.state in _BY_STATE:
            return replace(link, end=_BY_STATE[link.state], detail=link.state.lower().replace("_", " "))
        signals = script.signals if script else ()
        requests = {"USR1", "USR2", self._options.signal}.intersection(signals)
        status = script.status if script else self._status(link, exit_code)
        limit_s = link.end_s
        if script is not None:
            link = replace(link, end_s=(link.end_s if link.state else None) or script.time_s)
        if script is not None and not link.state:
            if "TERM" in signals and not requests and limit_s and script.time_s > limit_s - AT_ONCE_S:
                return replace(link, end=LinkEnd.TIME_LIMIT, detail="as it wrote itself")
            status = None if "TERM" in signals else status
        if requests:
            return replace(link, end=LinkEnd.CHECKPOINT, detail=f"asked by SIG{min(map(str, requests))}")
        if status is None:
            return replace(link, end=LinkEnd.UNKNOWN, detail="the queue and the accounts have forgotten it")
        if status == MORE:
            return replace(link, end=LinkEnd.CHECKPOINT, detail=f"status {MORE}: more to do")
        if status == 0:
            return replace(link, end=LinkEnd.DONE, detail="status 0")
        return replace(link, end=LinkEnd.FAILED, detail=f"status {status}{self._last_line(link.job)}")

    def _status(self, link: Link, exit_code: str | None) -> int | None:
        """The exit status of a job that did not write it itself; None where Slurm has forgotten it."""
        if link.state == "COMPLETED":
            return 0
        match = re.match(r"(\d+):(\d+)", exit_code or self._fields(link.job).get("ExitCode", ""))
        return None if match is None else int(match[1]) or 128 + int(match[2])

    def _fields(self, job: str | None) -> Mapping[str, str]:
        """What `scontrol show job` has of a job; empty where Slurm no longer has it."""
        with contextlib.suppress(SchedulerError):
            return fields_of(self._slurm.call("scontrol", "-o", "show", "job", job or ""))
        return {}

    def _last_line(self, job: str | None) -> str:
        """The last line of a job's output, for a sentence."""
        fields = self._fields(job)
        output = Path(fields.get("StdErr") or fields.get("StdOut", ""))
        last = last_line(output)
        if last is None:
            return f"; {output} is empty" if output.is_file() else ""
        return f"; {output} ends with: {last}"

    def _end_where_due(self) -> None:
        links = {number: link for number, link in self._state.links.items() if not link.settled}
        newest = links.get(max(links, default=0))
        if newest is None or newest.job is None:
            return
        predecessor, earlier = links.get(newest.predecessor or 0), links.get(newest.number - 1)
        # A driver that was killed may have cancelled it.
        idle = newest.waits or (newest.end is LinkEnd.CANCELLED and newest.start_s in (None, newest.end_s))
        if idle and predecessor is not None and self._is_last(predecessor):
            self._cancel(newest)
            self._finish(predecessor)
        elif newest.end is None:
            return
        elif self._is_last(newest) or self._options.until.reached(self._state.links, time.time()):
            self._finish(newest)
        elif earlier and earlier.ended_at_once and newest.ended_at_once and newest.follows(earlier):
            detail = f"it and the link before ended within {AT_ONCE_S:.0f} s, so no more are sent"
            self._finish(replace(newest, end=LinkEnd.FAILED, detail=f"{detail}{self._last_line(newest.job)}"))

    def _is_last(self, link: Link) -> bool:
        """Whether nothing comes after a link that ended so."""
        if link.end is LinkEnd.DONE:
            return self._options.until.done
        return link.end is not None and link.end not in _GOES_ON

    def _finish(self, link: Link) -> None:
        self._state.end = LinkEnd.DONE if link.end in _GOES_ON else link.end
        detail = "" if link.detail == link.end else f", {link.detail}"
        self._state.reason = f"link {link.number} (job {link.job}): {link.end}{detail}"
        self._folder.save()

    def _cancel(self, link: Link) -> None:
        """Cancel a link that waits; one that has started meanwhile sees by itself that nothing is left to do."""
        job = self._of_chain(self._patience.ask(lambda: self._slurm.queue(user=self._state.user))).get(link.number)
        if job is not None and job.pending:
            self._patience.ask(lambda: self._slurm.cancel(job.job, "--state=PENDING"))
        detail = "by the chain: the link before was the last"
        self._state.links[link.number] = replace(link, end=LinkEnd.CANCELLED, detail=detail)

    def _submit_where_due(self) -> None:
        newest, live = self._state.newest, self._state.live
        number = 1 if newest is None else newest.number + 1
        if live is None:
            self._submit(number, None)
        elif live.runs and not self._options.until.reached(self._state.links, time.time()):
            self._predict()
            if self._until_due_s() <= 0:
                self._submit(number, live)

    def _predict(self) -> None:
        """Ask again what the next link would wait: every ten minutes when it is nearly due, less often before."""
        if self._options.policy.lead_s is not None or self._options.policy.name == "reactive":
            self._state.lead_s = self._options.policy.lead_s
        elif time.time() - self._state.asked_s > max(_ASKED_AGAIN_S, min(self._until_due_s() / 2, _ASKED_AT_LEAST_S)):
            notes = self._forecast.notes if self._forecast else ()
            self._forecast = self._patience.ask(self._forecaster.ask)
            self._state.lead_s, self._state.asked_s = self._forecast.lead_s, time.time()
            self._folder.save()
            for note in self._forecast.notes if self._forecast.notes != notes else ():
                self._say(note)

    def _until_due_s(self) -> float:
        """Seconds until the next link is to be submitted, as far as is known."""
        live = self._state.live
        if live is None or not live.runs or live.end_s is None or self._state.lead_s is None:
            return math.inf
        return live.end_s - time.time() - self._state.lead_s

    def _submit(self, number: int, predecessor: Link | None) -> None:
        link = Link(number, time.time(), predecessor=predecessor.number if predecessor else None)
        self._state.links[number] = link
        self._folder.save()
        comment = f"{MARK}:{self._state.chain}:{number} {self._script.comment or ''}".strip()
        with contextlib.chdir(self._state.directory):
            answer = self._slurm.submit(
                self._wrapped(number, predecessor),
                keep=(self._lock.handle,),
                options=(*self._options.sbatch, f"--comment={comment}"),
                without=_HIDDEN,
            )
        self._refusal = answer.message
        if answer.job is not None:
            self._state.links[number] = replace(link, job=answer.job, state="PENDING")
        elif answer.refusal is not Refusal.UNSURE:
            del self._state.links[number]
        self._folder.save()
        if answer.refusal not in (None, Refusal.LATER, Refusal.UNSURE):
            runs = f"; job {predecessor.job} of the link before runs on" if predecessor else ""
            raise SchedulerError(f"Slurm refused the job of link {number}: {answer.message}{runs}")

    def _wrapped(self, number: int, predecessor: Link | None) -> str:
        """What is submitted: the options and the text of the script within chain.sh."""
        script = self._script
        latest_s = 0.0 if predecessor is None else predecessor.end_s or 0.0
        values = {
            "job_name": shlex.quote(script.path.name),
            "header": script.header,
            "chain": self._state.chain,
            "link": str(number),
            "previous": str(predecessor.number if predecessor else 0),
            "predecessor": predecessor.job or "" if predecessor else "",
            "latest": str(int(latest_s) + _GRACE_S),
            "grace": str(_GRACE_S),
            "signal": self._options.signal or "none",
            "until": "done" if self._options.until.done else "more",
            "more": str(MORE),
            "folder": shlex.quote(str(self._folder.path)),
            "delimiter": f"END-OF-SCRIPT-{uuid4().hex}",
            "script": script.text.removesuffix("\n"),
            "interpreter": script.interpreter,
        }
        return re.sub(r"@(\w+)@", lambda place: values[place[1]], _WRAPPER.read_text())

    def _tell(self) -> None:
        newest = self._state.newest
        if self._state.end is not None:
            self._say(f"the chain has ended: {self._state.reason}")
        elif self._refusal:
            self._say(f"Slurm takes no job at this moment: {self._refusal}")
        elif self._state.missing_s is not None:
            self._say("the accounts do not say yet how a link ended that the queue has forgotten: they are waited for")
        elif newest is not None:
            lead_s = self._state.lead_s
            due = "" if lead_s is None else f"; its successor is submitted {lead_s / 60:.0f} min before its limit"
            doing = f"runs{due}" if newest.runs else f"waits ({newest.detail or newest.state})"
            self._say(f"link {newest.number}, job {newest.job}, {doing}")

    def _say(self, sentence: str) -> None:
        if sentence != self._sentence and self._options.progress is not None:
            self._options.progress(sentence)
        self._sentence = sentence


_NOT_CHAINED = ("wrap", "test_only", "wait")  # with these sbatch submits another text, none, or does not come back
_VARIABLES = {"time": "SBATCH_TIMELIMIT", "partition": "SBATCH_PARTITION", "array": "SBATCH_ARRAY_INX"}


@dataclass(frozen=True, slots=True)
class UserScript:
    """A script, read."""

    path: Path
    header: str  # Its lines of comments at the top, in which sbatch looks for options, without the first
    text: str
    interpreter: str  # the words of the shell that run it
    shape: JobShape
    comment: str | None  # what the user has as the jobs' comment


def read_script(path: Path, slurm: Slurm, options: Sequence[str] = ()) -> UserScript:
    """Read a user's script and what it asks Slurm for; `options` of sbatch count more, and so do its variables.

    Raises InputError where it cannot be read, is no script, is an array or has no time limit.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the script {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    first, _, body = text.partition("\n")
    if not first.startswith("#!"):
        raise InputError(f"{path} is no script that sbatch takes: its first line must be like #!/bin/bash")
    header = list(takewhile(lambda line: line.lstrip()[:1] in ("", "#"), body.splitlines()))
    words: list[str] = []
    for line in filter(lambda line: line.startswith("#SBATCH"), header):
        try:
            words += shlex.split(line[7:], comments=True)
        except ValueError as error:
            raise InputError(f"{path}: the line `{line}` has a quote without its end") from error
    variables = {name: slurm.environment.get(variable) for name, variable in _VARIABLES.items()}
    written = vars(_sbatch_options(words, {})) | {name: text for name, text in variables.items() if text}
    chosen = _sbatch_options(options, written)
    if chosen.array or ":" in options or any(re.match(r"#SBATCH\s+(hetjob|packjob)", line) for line in header):
        raise InputError(f"{path} is an array or a job of several parts: a chain takes scripts of one job")
    for name in _NOT_CHAINED:
        if getattr(chosen, name):
            raise InputError(f"a chain cannot be submitted with --{name.replace('_', '-')}: leave it out")
    partitions = slurm.partitions()
    names = chosen.partition.split(",") if chosen.partition else []
    for name in names:
        if name not in partitions:
            raise InputError(f"{path} asks for partition {name}, but Slurm has only {', '.join(sorted(partitions))}")
    defaults = [row.name for row in partitions.values() if row.default]
    partition = next(iter([*names, *defaults]), None)
    row = partitions[partition] if partition else Partition("")
    limit_s = limit_seconds(chosen.time) if chosen.time else 60 * min(row.usual_min, row.longest_min)
    if not math.isfinite(limit_s):
        raise InputError(f"{path} has no time limit, so there is nothing to chain: write `#SBATCH --time=24:00:00`")
    nodes = re.match(r"\d+", chosen.nodes or "")
    least_nodes = int(nodes[0]) if nodes else 1
    if not nodes:  # it asks for tasks or GPUs only; what is wrong with it the submission says
        with contextlib.suppress(SchedulerError, InputError):
            least_nodes = slurm.test_nodes(options, text) or 1
    shape = JobShape(nodes=least_nodes, limit_s=limit_s, partition=partition)
    interpreter = shlex.join(first[2:].strip().split(None, 1)) or "/bin/sh"
    return UserScript(path.resolve(), "\n".join(header), text, interpreter, shape, chosen.comment)


def _sbatch_options(words: Sequence[str], defaults: Mapping[str, object]) -> argparse.Namespace:
    """The options of sbatch that a chain needs to know, of all that are there."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    for short, name in (("-t", "time"), ("-N", "nodes"), ("-p", "partition"), ("-a", "array")):
        parser.add_argument(short, f"--{name}")
    parser.add_argument("--comment")
    parser.add_argument("--wrap")
    parser.add_argument("--test-only", action="store_true")
    parser.add_argument("-W", "--wait", action="store_true")
    parser.set_defaults(**defaults)
    try:
        return parser.parse_known_args(list(words))[0]
    except argparse.ArgumentError as error:
        raise InputError(f"the options of sbatch cannot be read: {error}") from error
