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

import contextlib
import json
import math
import os
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from ..errors import InputError, SchedulerError, StoreError
from ..store.system.locks import Lock, locked
from .forecast import Forecast, Forecaster, JobShape, LeadPolicy
from .scheduler import ENDED, RUNNING, QueuedJob, Refusal
from .slurm import Slurm, fields_of
from .user_script import UserScript, read_script

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
_ASKED_AGAIN_S, _ASKED_AT_LEAST_S = 600.0, 21_600.0  # between two predictions
_AFTER_LIMIT_S = 300  # Slurm may let a job run a little longer than its limit
_WRAPPER = Path(__file__).with_name("chain.sh")
# Of a job around the driver, as in a step or a scrontab: the links are jobs of their own. And sbatch must not wait.
_HIDDEN = ("SBATCH_WAIT", *(f"SLURM_{word}" for word in ("CPU", "GPU", "JOB", "MEM", "N", "STEP", "TASK", "TRES")))


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
    predecessor: int | None = None
    """The link that it takes over from; None if that had ended before."""
    settled: bool = False
    """Whether it had ended when the chain was resumed: its end counts no longer."""

    @property
    def waits(self) -> bool:
        return self.end is None and self.job is not None and not self.runs

    @property
    def runs(self) -> bool:
        return self.end is None and self.state in RUNNING

    def follows(self, before: Link) -> bool:
        """Whether it started after the other had ended: not by a hand-over."""
        return self.start_s is not None and before.end_s is not None and before.end_s <= self.start_s

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
    policy: LeadPolicy = field(default_factory=LeadPolicy)
    signal: str | None = "USR1"
    """What asks a link to checkpoint; None: its successor waits until it ends by itself."""
    sbatch: tuple[str, ...] = ()
    """Further options of sbatch."""
    folder: Path | None = None
    """The chain's folder; SCRIPT.chain where it is left out."""
    progress: Callable[[str], None] | None = None
    """Is told what goes on, a sentence each time that it changes."""
    once: bool = False
    """Do what is due, and end."""
    resume: bool = False
    """Go on with a chain that has ended."""
    patience_s: float = PATIENCE_S


@dataclass(frozen=True, slots=True)
class ScriptEnd:
    """What a link wrote when its script had ended."""

    time_s: float
    status: int
    signals: tuple[str, ...]
    """Those that it had got: USR1, TERM, ..."""


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
    unsure_s: float | None = None
    """When Slurm gave no answer to the last submission."""
    lead_s: float | None = None
    """The wait that was predicted last: so long before its end a link gets its successor."""
    asked_s: float = 0.0
    """When it was predicted."""

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


# -- the chain's folder ---------------------------------------------------------------------------------------------


class ChainFolder:
    """The folder of a chain: `state`, and what its links wrote of themselves."""

    def __init__(self, options: ChainOptions, *, write: bool) -> None:
        """Raises InputError where it is of another script or another user, StoreError where it cannot be used."""
        script = options.script.resolve()
        self.path = (options.folder or script.with_name(f"{script.name}.chain")).absolute()
        if re.search(r"[\s'\"\\]", str(self.path)):
            raise InputError(f"the chain's folder {str(self.path)!r} has a blank or a quote: give another --folder")
        try:
            if write:
                self.path.mkdir(parents=True, exist_ok=True)
            self.state = ChainState.from_json((self.path / "chain.json").read_text())
        except FileNotFoundError:
            self.state = ChainState(uuid4().hex[:10], str(script), str(Path.cwd()), os.geteuid())
        except (OSError, ValueError, TypeError, KeyError) as error:
            why = getattr(error, "strerror", None) or f"its chain.json is damaged: {error}"
            raise StoreError(f"the chain's folder {self.path} cannot be used: {why}; give another --folder") from error
        if self.state.script != str(script):
            raise InputError(f"{self.path} is the chain of {self.state.script}: give this one another --folder")
        if self.state.user != os.geteuid():
            raise InputError(f"{self.path} is the chain of another user: give yours another --folder")

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
            raise StoreError(f"{path} cannot be written: {error.strerror}; nothing more was submitted") from error

    def begun(self, number: int) -> tuple[str, float] | None:
        """The job that runs as this link, and when it began; None where it did not write that."""
        words = self._words(number, "begun")
        return (words[0], float(words[1])) if len(words) == 2 else None

    def ended(self, number: int, job: str | None) -> ScriptEnd | None:
        """How the script of a link ended in this job; None where it did not write that."""
        words = [*self._words(number, "ended"), ""]
        return ScriptEnd(float(words[1]), int(words[2]), tuple(words[3].split(","))) if words[0] == job else None

    def _words(self, number: int, event: str) -> list[str]:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return (self.path / f"link-{number:04d}.{event}").read_text().split()
        return []


# -- the driver -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainReport:
    """How far a chain is."""

    folder: ChainFolder
    shape: JobShape
    forecast: Forecast | None
    """What a further link would wait; None where it was not asked for."""
    notes: tuple[str, ...] = ()

    @property
    def interruptions_s(self) -> dict[int, float]:
        """Link -> seconds from the end of the one before to its start; negative where both ran."""
        links = self.folder.state.links
        pairs = [(link, links[number - 1]) for number, link in links.items() if number - 1 in links]
        return {
            link.number: link.start_s - before.end_s
            for link, before in pairs
            if link.start_s is not None and before.end is not None and before.end_s is not None
        }


def plan_chain(slurm: Slurm, options: ChainOptions) -> ChainReport:
    """What a chain would do: nothing is submitted or written. Raises InputError, SchedulerError."""
    slurm.check()
    script = read_script(options.script, slurm, options.sbatch)
    folder = ChainFolder(options, write=False)
    return ChainReport(
        folder, script.shape, Forecaster(slurm, script.shape, options.policy, options.sbatch).ask(planned=True)
    )


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
        if options.resume and folder.state.end is not None:
            folder.state.end, links = None, folder.state.links
            folder.state.links = {number: replace(link, settled=link.end is not None) for number, link in links.items()}
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
        self._answered_s = time.monotonic()  # when Slurm last answered, and took a job where one was due

    def run(self) -> ChainReport:
        pause_s = _FIRST_S
        while self._state.end is None:
            earlier = self._state.links.copy()
            self._look()
            self._end_where_due()
            if self._state.end is None:
                self._submit_where_due()
            self._tell()
            if self._options.once or self._state.end is not None:
                break
            pause_s = _FIRST_S if self._state.links != earlier else min(pause_s * _GROWS, _LONGEST_S)
            time.sleep(min(pause_s, max(self._until_due_s(), _FIRST_S)))
        notes = (f"Slurm takes no job at this moment: {self._refusal}",) if self._refusal else ()
        return ChainReport(self._folder, self._script.shape, self._forecast, notes)

    # -- looking --

    def _look(self) -> None:
        """Bring the links up to date. The queue is asked before the links' files are read: no end is missed between."""
        queued = self._of_chain(self._patiently(lambda: self._slurm.queue(user=self._state.user)))
        links = self._state.links
        earlier = links.copy()
        for number in sorted(queued.keys() | links.keys()):
            link, job = links.get(number) or Link(number, time.time()), queued.get(number)
            if link.end is not None:
                continue
            if job is None:
                self._look_further(link)
                continue
            times = (None, None) if job.pending else (job.start, job.end)  # of one that waits they are expected ones
            start_s, end_s = (None if moment is None else moment.timestamp() for moment in times)
            link = replace(link, job=job.job, state=job.state, start_s=start_s, end_s=end_s, detail=job.reason)
            links[number] = self._ended(link) if job.ended else link
        if links != earlier:
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

    def _look_further(self, link: Link) -> None:
        """A link that the queue does not show: it ended some time ago, or was never taken."""
        row = self._accounted(link)
        begun_job, begun_s = self._folder.begun(link.number) or (None, link.start_s)
        job = link.job or row.get("JobIDRaw") or begun_job
        if job is None:
            if self._state.unsure_s is None or time.time() - self._state.unsure_s > SETTLE_S:
                del self._state.links[link.number]  # Slurm never took it
                self._state.unsure_s = None
            return
        state = row.get("State", "").partition(" ")[0]  # CANCELLED by 1000
        if state and state not in ENDED:
            return  # the accounts are behind
        start_s, end_s = (float(row[name]) if row.get(name, "").isdigit() else None for name in ("Start", "End"))
        link = replace(link, job=job, state=state, start_s=start_s or begun_s, end_s=end_s or link.end_s)
        self._state.links[link.number] = self._ended(link, row.get("ExitCode"))

    def _accounted(self, link: Link) -> Mapping[str, str]:
        """What the accounts have of a link's job, found by its number or by the comment that it was submitted with."""
        since = datetime.fromtimestamp(link.submitted_s - 7200.0)  # noqa: DTZ006  sacct reads the times of this clock
        mark = re.compile(rf"{MARK}:{self._state.chain}:{link.number}(?:\W|$)")
        names = ("JobIDRaw", "State", "ExitCode", "Start", "End", "Comment", "SubmitLine")
        words = ("sacct", "-X", "-n", "-P", f"--starttime={since:%Y-%m-%dT%H:%M:%S}", "-o", ",".join(names))
        with contextlib.suppress(SchedulerError):  # there may be no accounting
            for line in self._slurm.call(*words).splitlines():
                row = dict(zip(names, line.split("|"), strict=False))
                if row["JobIDRaw"] == link.job or mark.search(line):
                    return row
        return {}

    def _ended(self, link: Link, exit_code: str | None = None) -> Link:
        """The link with how it ended, from Slurm's state and what the link wrote of itself."""
        assert link.job is not None
        script = self._folder.ended(link.number, link.job)
        if link.state in _BY_STATE:
            return replace(link, end=_BY_STATE[link.state], detail=link.state.lower().replace("_", " "))
        requests = {"USR1", "USR2", self._options.signal}.intersection(script.signals if script else ())
        if script is not None:
            status = script.status if link.state or requests or "TERM" not in script.signals else None
            link = replace(link, end_s=link.end_s or script.time_s)
        else:
            status = self._status(link, exit_code)
        if requests:
            return replace(link, end=LinkEnd.CHECKPOINT, detail=f"asked by SIG{min(map(str, requests))}")
        if status is None:
            detail = "the queue and the accounts have forgotten it"
            return replace(link, end=LinkEnd.UNKNOWN, detail=detail)
        if status == MORE:
            return replace(link, end=LinkEnd.CHECKPOINT, detail=f"status {MORE}: more to do")
        if status == 0:
            return replace(link, end=LinkEnd.DONE, detail="status 0")
        return replace(link, end=LinkEnd.FAILED, detail=f"status {status}{self._last_line(link.job)}")

    def _status(self, link: Link, exit_code: str | None) -> int | None:
        """The exit status of a job that did not write it itself; None where Slurm has forgotten it."""
        if link.state == "COMPLETED":
            return 0
        match = re.match(r"(\d+):(\d+)", exit_code or self._shown(link.job, "ExitCode"))
        return None if match is None else int(match[1]) or 128 + int(match[2])

    def _shown(self, job: str | None, name: str) -> str:
        """A field of `scontrol show job`; "" where Slurm no longer has the job."""
        with contextlib.suppress(SchedulerError):
            return fields_of(self._slurm.call("scontrol", "-o", "show", "job", job or "")).get(name, "")
        return ""

    def _last_line(self, job: str | None) -> str:
        """The last line of a job's output, for a sentence."""
        output = self._shown(job, "StdErr") or self._shown(job, "StdOut")
        try:
            lines = Path(output).read_text(errors="replace").splitlines()
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"; {output} ends with: {last[:200]}" if last else f"; {output} is empty"

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
        links = {number: link for number, link in self._state.links.items() if not link.settled}
        newest = links.get(max(links, default=0))
        if newest is None or newest.job is None:
            return
        predecessor, earlier = links.get(newest.predecessor or 0), links.get(newest.number - 1)
        if newest.waits and predecessor is not None and self._is_last(predecessor):
            self._cancel(newest)
            self._finish(predecessor)
        elif newest.end is None:
            return
        elif self._is_last(newest) or self._options.until.reached(newest.number, time.time()):
            self._finish(newest)
        elif earlier is not None and earlier.ended_at_once and newest.ended_at_once and newest.follows(earlier):
            detail = f"it and the link before ended within {AT_ONCE_S:.0f} s, so no more are sent"
            self._finish(replace(newest, end=LinkEnd.FAILED, detail=f"{detail}{self._last_line(newest.job)}"))

    def _is_last(self, link: Link) -> bool:
        """Whether nothing comes after a link that ended so."""
        if link.end is LinkEnd.DONE:
            return self._options.until.done
        return link.end is not None and link.end not in _GOES_ON

    def _finish(self, link: Link) -> None:
        self._state.end = LinkEnd.DONE if link.end in _GOES_ON else link.end
        self._state.reason = f"link {link.number} (job {link.job}): {link.end}, {link.detail}"
        self._folder.save()

    def _cancel(self, link: Link) -> None:
        """Cancel a link that waits; one that has started meanwhile sees by itself that nothing is left to do."""
        job = self._of_chain(self._slurm.queue(user=self._state.user)).get(link.number)
        if job is not None and job.pending:
            self._slurm.call("scancel", "--state=PENDING", job.job)
        cancelled = replace(link, end=LinkEnd.CANCELLED, detail="by the chain: the link before was the last")
        self._state.links[link.number] = cancelled

    # -- submitting --

    def _submit_where_due(self) -> None:
        newest, live = self._state.newest, self._state.live
        number = 1 if newest is None else newest.number + 1
        if live is None:
            self._submit(number, None)
        elif live.runs and not self._options.until.reached(number - 1, time.time()):
            self._predict()
            if self._until_due_s() <= 0:
                self._submit(number, live)

    def _predict(self) -> None:
        """Ask again what the next link would wait: every ten minutes when it is nearly due, less often before."""
        if self._options.policy.lead_s is not None or self._options.policy.name == "reactive":
            self._state.lead_s = self._options.policy.lead_s
        elif time.time() - self._state.asked_s > max(_ASKED_AGAIN_S, min(self._until_due_s() / 2, _ASKED_AT_LEAST_S)):
            notes = self._forecast.notes if self._forecast else ()
            self._forecast = self._patiently(self._forecaster.ask)
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
            self._answered_s = time.monotonic()
        elif answer.refusal is Refusal.UNSURE:
            self._state.unsure_s = time.time()
        else:
            del self._state.links[number]
        self._folder.save()
        if answer.job is None:
            waits = answer.refusal in (Refusal.LATER, Refusal.UNSURE)
            patient = predecessor is not None or time.monotonic() - self._answered_s < self._options.patience_s
            if not (waits and patient):
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
            "latest": str(int(latest_s) + _AFTER_LIMIT_S),
            "signal": self._options.signal or "none",
            "until": "done" if self._options.until.done else "more",
            "more": str(MORE),
            "folder": str(self._folder.path),
            "delimiter": f"END-OF-SCRIPT-{uuid4().hex}",
            "script": script.text.removesuffix("\n"),
            "interpreter": script.interpreter,
        }
        return re.sub(r"@(\w+)@", lambda place: values[place[1]], _WRAPPER.read_text())

    # -- telling --

    def _tell(self) -> None:
        newest = self._state.newest
        if self._state.end is not None:
            self._say(f"the chain has ended: {self._state.reason}")
        elif self._refusal:
            self._say(f"Slurm takes no job at this moment: {self._refusal}")
        elif newest is not None:
            lead_s = self._state.lead_s
            due = "" if lead_s is None else f"; its successor is submitted {lead_s / 60:.0f} min before its limit"
            doing = f"runs{due}" if newest.runs else f"waits ({newest.detail or newest.state})"
            self._say(f"link {newest.number}, job {newest.job}, {doing}")

    def _say(self, sentence: str) -> None:
        if sentence != self._sentence and self._options.progress is not None:
            self._options.progress(sentence)
        self._sentence = sentence
