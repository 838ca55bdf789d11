"""What a batch scheduler is to whorl: a class that runs its commands, and the rows that it answers with.

`Slurm`, `Pbs`, `Lsf` and `Flux` are the classes, a module each; SCHEDULERS of the package `jobs` has them by name.
Every call of a command has a time limit, since clients of a dead server wait for long, and messages come in English.
States of jobs are spelled as Slurm spells them, which tells most apart; the other classes translate theirs.

A scheduler that was never tried on a real one (`tried` is False) says so in `caution`, which a verb prints once.
"""

from __future__ import annotations

import json
import math
import os
import pwd
import re
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from ..errors import InputError, SchedulerError
from .batch import BatchJob, render

T = TypeVar("T")

TIMEOUT_S = 10.0
QUEUE_S = 60.0  # so long a list of the jobs of all users may take: on a large site it has 100,000 of them
ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}
    | {"REVOKED"}
)
"""States of jobs that have ended."""
RUNNING = frozenset({"CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
"""States of jobs that have nodes."""
APART = "\x1f"  # between the fields of a row: the unit separator, which no name of a user, an account or a node holds
_ROW_END = f"{APART}."  # free text, as the name of a job, may hold line breaks


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the scheduler has it."""

    name: str
    state: str  # as the scheduler spells it: IDLE, MIXED+DRAIN, offline
    partitions: tuple[str, ...] = ()  # the partitions or queues that send jobs to it
    available: tuple[str, ...] = ()  # its features
    active: tuple[str, ...] = ()  # those of them that it has at this moment
    weight: int | None = None
    gpus: int = 0
    host: str = ""  # the name by which the network knows it, where that is another one
    reason: str = ""  # why an administrator or the scheduler took it out
    usable: bool = True  # whether it runs jobs: it may be busy, but is neither down nor drained nor set aside
    idle: bool = False  # whether no job is on it
    reserved: bool = False  # whether it is in a reservation that has begun
    kind: str = ""  # its GRES, processors, memory, ...: equal where a job that fits on one node fits on the other


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition or queue as the scheduler has it."""

    name: str
    default: bool = False
    up: bool = True  # whether it takes jobs of this user and starts them
    longest_min: float = math.inf  # the longest job, minutes
    usual_min: float = math.inf
    """The time limit of jobs that name none, minutes; infinite where that is the longest job's."""
    least_nodes: int = 1  # of a job


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job as the queue has it: it waits, runs, or ended some minutes ago. Times are UTC."""

    job: str  # its number, as `cancel` takes it
    name: str
    state: str  # as Slurm spells it: PENDING, RUNNING, FAILED
    reason: str = ""  # why it waits, or how it ended, as the scheduler says it
    user: int | None = None  # the number of its owner; None where it is not known
    comment: str = ""
    nodes: str = ""  # the host list that it runs on; "" before it starts
    held: bool = False  # whether it does not start before somebody releases it
    start: datetime | None = None  # when it started, or is expected to; None where the scheduler does not say
    end: datetime | None = None  # when it ended, or reaches its time limit; None where the scheduler does not say

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def pending(self) -> bool:
        return not self.ended and self.state not in RUNNING


class Refusal(StrEnum):
    """Why a scheduler did not take a job."""

    LATER = "later"  # a limit is reached, or the scheduler is busy: the same job may be taken later
    UNSURE = "unsure"  # no answer came in time: the job may be in the queue all the same
    NODE = "node"  # the node cannot run it
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a submission: the number of the job, or a refusal with what the scheduler said."""

    job: str | None
    refusal: Refusal | None = None
    message: str = ""


@dataclass(slots=True)
class Patience:
    """Asks a scheduler that may be busy or restart, for so many seconds without an answer; with 0 once."""

    longest_s: float
    tell: Callable[[str], None]  # hears why it is asked again
    answered_s: float = field(default_factory=lambda: time.monotonic())
    asking_s: float = 0.0  # how long its answers took

    def ask(self, question: Callable[[], T]) -> T:
        """What the scheduler answers, in the end. Raises SchedulerError."""
        pause_s = 1.0
        while True:
            began_s = time.monotonic()
            try:
                answer = question()
            except SchedulerError as error:
                if error.absent or time.monotonic() - self.answered_s + pause_s > self.longest_s:
                    raise SchedulerError(
                        f"{error}; jobs that were submitted stay in the queue: run the command again to go on",
                        absent=error.absent,
                    ) from error
                self.tell(str(error))
                time.sleep(pause_s)
                pause_s = min(1.5 * pause_s, 60.0)
            else:
                self.answered_s = time.monotonic()
                self.asking_s += self.answered_s - began_s
                return answer


class Scheduler(ABC):
    """A batch scheduler, asked through its commands. Every method raises SchedulerError where they do not answer."""

    name: ClassVar[str]
    title: ClassVar[str]  # its name for people
    tried: ClassVar[bool]  # whether whorl was tried on a real one
    ping: ClassVar[str]  # a command that says whether its server is up, for people
    hides: ClassVar[tuple[str, ...]] = ()  # how variables of the environment begin that change what its commands print
    variables: ClassVar[Mapping[str, str]] = {"LC_ALL": "C"}  # with these, its commands print what is read here
    overrides: ClassVar[tuple[str, ...]] = ()  # how variables begin that would win over the lines of a script
    submits: ClassVar[tuple[str, ...]]  # the command that reads a script
    number: ClassVar[re.Pattern[str]]  # finds the job's number in what that prints
    cancels: ClassVar[tuple[str, ...]]  # the command that cancels a job
    in_output: ClassVar[re.Pattern[str] | None] = None  # what means something else to it in the path of an output

    # What its commands say where no scheduler is configured, where its server does not answer, ...
    unconfigured: ClassVar[re.Pattern[str]]
    unreachable: ClassVar[re.Pattern[str]]
    busy: ClassVar[re.Pattern[str]]  # ... of a job that it may take later
    no_node: ClassVar[re.Pattern[str]]  # ... of a job that its node cannot run
    unsure: ClassVar[re.Pattern[str]] = re.compile("timed out", re.IGNORECASE)  # ... where it may have taken the job
    gone: ClassVar[re.Pattern[str]]  # ... of a job to cancel that has ended

    def __init__(self, timeout_s: float = TIMEOUT_S, environment: Mapping[str, str] | None = None) -> None:
        self.timeout_s = timeout_s
        self.environment = dict(os.environ if environment is None else environment)

    @property
    def caution(self) -> str | None:
        """A sentence for a scheduler that was never tried on a real one."""
        if self.tried:
            return None
        return f"not tried on a real {self.title}: its commands were written from documentation, so look at each job"

    def check(self) -> None:
        """Raise SchedulerError where no server answers, with `absent` where it is not installed or not configured."""
        self.call(*self.ping.split())

    @abstractmethod
    def nodes(self) -> Mapping[str, Node]:
        """Every node, by name."""

    @abstractmethod
    def partitions(self) -> Mapping[str, Partition]:
        """Every partition or queue that this user may see, by name."""

    def cluster_name(self) -> str | None:
        """What the scheduler calls this cluster; None where it does not say."""
        return None

    @abstractmethod
    def queued_jobs(self, user: int | None) -> Iterable[QueuedJob]:
        """The jobs that the queue shows: of the user of a number at least, of all who may be seen if None."""

    def queue(self, *, name_prefix: str | None = None, user: int | None = None) -> list[QueuedJob]:
        """The jobs that wait, run or ended lately, of all users or one, with names that begin so."""
        jobs = [job for job in self.queued_jobs(user) if user is None or job.user == user]
        return [job for job in jobs if name_prefix is None or job.name.startswith(name_prefix)]

    def submit(
        self,
        script: str,
        *,
        keep: Sequence[int] = (),
        options: Sequence[str] = (),
        without: Sequence[str] | None = None,
    ) -> Answer:
        """Submit a script, with this user's environment, which the job inherits.

        Files of the numbers `keep` stay open in the command: a lock outlives this process with it. `options` of the
        command win over the script's lines, and so do variables of the environment, but for those whose names begin
        with one of `without`, or of `overrides` if None. Raises SchedulerError only where the scheduler is absent.
        """
        hidden = self.overrides if without is None else without
        try:
            done = self.ask(*self.submits, *options, text=script, keep=keep, without=hidden, variables={})
        except SchedulerError as error:
            if error.absent:
                raise
            return Answer(None, Refusal.UNSURE, str(error))
        number = self.number.search(done.stdout)
        if done.returncode == 0 and number:
            return Answer(number[1].replace("ƒ", "f"))  # as the queue of Flux writes it, in plain ASCII
        message = message_of(done)
        kinds = ((self.unsure, Refusal.UNSURE), (self.busy, Refusal.LATER), (self.no_node, Refusal.NODE))
        refusal = next((kind for words, kind in kinds if words.search(message)), Refusal.OTHER)
        return Answer(None, refusal if done.returncode else Refusal.UNSURE, message)

    def cancel(self, job: str, *options: str) -> None:
        """Cancel a job, with further options of the command; one that has ended already is no error."""
        done = self.ask(*self.cancels, *options, job)
        if done.returncode and not self.gone.search(done.stderr + done.stdout):
            raise SchedulerError(f"{self.title} does not cancel job {job}: {message_of(done)}")

    def render(self, job: BatchJob, template: Path | None = None) -> str:
        """The script of a job, from the template of this scheduler or from a file. Raises InputError."""
        if self.in_output and (code := self.in_output.search(job.output or "")):
            raise InputError(
                f"{self.title} reads {code[0]!r} in the path of an output as its own sign, not as a part of "
                f"{job.output}: choose another folder with --set output=DIR"
            )
        return render(self.name, job, template)

    def call(self, *command: str, timeout_s: float | None = None) -> str:
        """The output of a command. Raises SchedulerError where it is missing, fails, or does not end in time."""
        done = self.ask(*command, timeout_s=timeout_s)
        if done.returncode:
            raise SchedulerError(f"{self.title} refused `{' '.join(command[:3])}`: {message_of(done)}")
        return done.stdout

    def rows(self, fields: Sequence[str], *command: str) -> list[list[str]]:
        """The rows of these fields that a command prints in a form, its last word; what is no row is passed over.

        A field may hold line breaks, and the last one what stands between fields: its end is then lost.
        """
        text = self.call(*command, APART.join(fields) + _ROW_END, timeout_s=QUEUE_S)
        rows, width = [row.split(APART) for row in text.split(f"{_ROW_END}\n")], len(fields)
        return [[row[0].rpartition("\n")[2], *row[1:width]] for row in rows if len(row) >= width]

    def document(self, *command: str, timeout_s: float | None = None) -> dict[str, Any]:
        """The object in the JSON that a command prints, {} where it prints nothing. Raises SchedulerError."""
        text = self.call(*command, timeout_s=timeout_s)
        try:
            document = json.loads(text or "{}", strict=False)  # values may hold control characters
        except ValueError as error:
            raise SchedulerError(f"`{' '.join(command[:4])}` printed what is no JSON: {error}") from error
        if not isinstance(document, dict):
            raise SchedulerError(f"`{' '.join(command[:4])}` printed no JSON object")
        return document

    def ask(
        self,
        *command: str,
        text: str | None = None,
        keep: Sequence[int] = (),
        without: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, which may refuse.

        `text` is its input; files of the numbers `keep` stay open in it; it does not see variables of the environment
        whose names begin with one of `without`; `variables` replace those of this class, which a job would inherit.

        Raises SchedulerError where it is missing, does not end in time, or no server answers.
        """
        hidden, limit_s = (*self.hides, *without), timeout_s or self.timeout_s
        environment = {key: value for key, value in self.environment.items() if not key.startswith(hidden)}
        try:
            done = subprocess.run(  # noqa: S603  a scheduler's own commands, arguments as a list
                command,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                env=environment | dict(self.variables if variables is None else variables),
                check=False,
                pass_fds=keep,
                **({"stdin": subprocess.DEVNULL} if text is None else {"input": text}),
            )
        except FileNotFoundError as error:
            raise SchedulerError(
                f"there is no `{command[0]}` here: run this on a machine with {self.title}'s commands", absent=True
            ) from error
        except OSError as error:
            raise SchedulerError(f"`{command[0]}` cannot be run: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise SchedulerError(
                f"{self.title} did not answer `{command[0]}` within {limit_s:g} s: `{self.ping}` says whether it is up"
            ) from error
        if done.returncode and self.unconfigured.search(done.stderr):
            raise SchedulerError(self.not_configured(), absent=True)
        if done.returncode and self.unreachable.search(done.stderr):
            raise SchedulerError(self.not_reached(command[0]))
        return done

    def not_configured(self) -> str:
        """The sentence for a machine where its commands find no server to ask."""
        return f"no {self.title} is configured here"

    def not_reached(self, command: str) -> str:
        """The sentence for a server that does not answer a command."""
        return f"{self.title} does not answer `{command}`: check it with `{self.ping}`"


def message_of(done: subprocess.CompletedProcess[str]) -> str:
    """What a command that failed said, in one line."""
    return one_line(done.stderr) or one_line(done.stdout) or f"status {done.returncode}"


def one_line(text: str) -> str:
    """The lines of a message as one, without the name of the command that each begins with."""
    lines = [re.sub(r"^\w+: (?:error: |fatal: )?", "", line).strip() for line in text.splitlines() if line.strip()]
    return "; ".join(lines)[:300]


def last_line(path: Path) -> str | None:
    """The last line of a file that is not empty, cut; None where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return None
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), None)


def utc_time(seconds: str | None) -> datetime | None:
    """Seconds since 1970 as a time; None for what is no number, or 0, by which schedulers mean no time."""
    try:
        instant = float(seconds or 0)
    except ValueError:
        return None
    return datetime.fromtimestamp(instant, UTC) if 0 < instant < 1e11 else None


def printed_time(text: str, form: str) -> datetime | None:
    """A time that a command printed in UTC, in a form of strptime; None for a text of another form."""
    try:
        return datetime.strptime(text, form).replace(tzinfo=UTC)
    except ValueError:
        return None


def user_number(name: str) -> int | None:
    """The number of a user by name, which may have a host behind an @; None where this machine does not know it."""
    try:
        return pwd.getpwnam(name.partition("@")[0]).pw_uid
    except KeyError:
        return None


def count_of(number: str | None) -> int:
    """A number as commands print it; 0 for what is none, as "-" or "<various>"."""
    return int(number) if number and number.isdigit() else 0


# -- a store's nodes under the names of the scheduler ------------------------------------------------------------------


@dataclass(frozen=True)
class NodeNames:
    """Which of a store's nodes a scheduler has: its names for them, and those that it does not know."""

    names: Mapping[str, str]  # a store's name -> the scheduler's
    unknown: tuple[str, ...]
    elsewhere: tuple[str, ...]  # known, but not in the partition asked for
    unclear: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """A scheduler's node -> the nodes of several domains (all unknown) of which it can be one."""

    def of(self, nodes: Iterable[str]) -> list[str]:
        """The scheduler's names of a store's nodes, in their order, each once; the others are left out."""
        return list(dict.fromkeys(self.names[name] for name in nodes if name in self.names))


def within(node: Node, partition: str | None) -> bool:
    """Whether a node is in a partition, or in one of several as Slurm lists them; every node is in None."""
    return partition is None or bool(set(partition.split(",")) & set(node.partitions))


def known(measured: Iterable[str], nodes: Mapping[str, Node], partition: str | None = None) -> NodeNames:
    """Find a store's nodes among the scheduler's.

    A name counts if it is the same, else if it differs only in case or in that one of the two has no domain, else if
    it is so the host name of one node only. Two domains are two nodes: where names of several would be one node of the
    scheduler's, none of them is.
    """
    by_name = _by_host((node.name, node.name) for node in nodes.values())
    by_host = _by_host((node.host, node.name) for node in nodes.values() if node.host)
    names: dict[str, str] = {}
    with_domain: dict[str, list[str]] = {}  # a scheduler's node -> names with a domain that fit it
    stored = list(dict.fromkeys(measured))
    for name in stored:
        if name in nodes:
            names[name] = name
            continue
        candidates = _candidates(name, by_name) or _candidates(name, by_host)
        if len(candidates) == 1:
            names[name] = candidates[0]
            with_domain.setdefault(candidates[0], []).append(name)
    unclear = {}
    for node, fitting in with_domain.items():
        if len({name.lower().partition(".")[2] for name in fitting} - {""}) > 1:
            unclear[node] = tuple(name for name in fitting if "." in name)
            for name in unclear[node]:
                del names[name]
    unknown = tuple(name for name in stored if name not in names)
    elsewhere = tuple(name for name, node in names.items() if not within(nodes[node], partition))
    return NodeNames({name: names[name] for name in names if name not in elsewhere}, unknown, elsewhere, unclear)


def _by_host(nodes: Iterable[tuple[str, str]]) -> dict[str, list[tuple[str, str]]]:
    """By the host in small letters: the domains, and the scheduler's nodes that have them."""
    by_host: dict[str, list[tuple[str, str]]] = {}
    for name, node in nodes:
        host, _, domain = name.lower().partition(".")
        by_host.setdefault(host, []).append((domain, node))
    return by_host


def _candidates(name: str, by_host: Mapping[str, list[tuple[str, str]]]) -> list[str]:
    """The scheduler's nodes that this name can stand for."""
    host, _, domain = name.lower().partition(".")
    fitting = [(at, node) for at, node in by_host.get(host, []) if not (at and domain and at != domain)]
    exact = [node for at, node in fitting if at == domain]
    return list(dict.fromkeys(exact or [node for _, node in fitting]))
