"""Opens an engine by the name of a place: this process, a scheduler of Dask, or workers that run as jobs of Slurm."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypedDict, Unpack
from uuid import uuid4

from ..analysis.engines import HERE, DaskEngine, Engine, Here
from ..errors import EngineError, InputError, SchedulerError

if TYPE_CHECKING:
    from distributed import Client
    from distributed.security import Security

    from .slurm import Slurm

log = logging.getLogger(__name__)

WORKERS = 4  # jobs of Slurm, where nobody says how many
MEMORY = "1 GiB"  # of such a job: a worker takes 0.4 GB, the process that starts it again 0.1

LEAN = (
    "POLARS_MAX_THREADS=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 ARROW_DEFAULT_MEMORY_POOL=system "
    "MALLOC_TRIM_THRESHOLD_=67108864 MALLOC_MMAP_THRESHOLD_=33554432 DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED=False "
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL=500ms DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__INTERVAL=5s"
)
"""The environment of a worker: it has one CPU, and what Arrow lets go of goes back to the system; but not at once, as
with the threshold of 64 KiB that Dask sets, which doubles the CPU of parts. Dask looks at itself seldom: with its own
settings, a scheduler and two workers that do nothing take 0.05 to 0.1 s of CPU a second, with these a third of it."""
LONGEST_MIN = 240  # the time limit of such a job, where its partition allows that

_CONNECT_S = 30
_IDLE_S = 120
_LOOK_S = 1.0
_TELL_S = 30.0


class SlurmJobs(TypedDict, total=False):
    """What workers are started with as jobs of Slurm; all else is taken from Dask's `jobqueue.yaml`."""

    account: str | None  # who pays for them
    partition: str | None  # where they run
    wait_s: float  # so long the first of them may take to start (s); 600 where it is left out


def engine(
    on: str = "here",
    *,
    workers: int | None = None,
    or_here: bool = False,
    tell: Callable[[str], None] | None = None,
    **jobs: Unpack[SlurmJobs],
) -> Engine:
    """The engine at a place: "here", "dask://HOST:PORT", "tls://HOST:PORT" or "slurm". Use it in a `with` block.

    `workers`: how many threads here, or jobs of Slurm. With `or_here`, this process makes the parts where the workers
    cannot be had, do not see the store, or are lost. `tell` is called with sentences: what it waits for, and why it
    goes on here (None: they are logged). Raises InputError for a place that is none of these, and EngineError where
    there is no scheduler, Slurm refuses the jobs, or none of them starts in time.
    """
    if workers is not None and workers < 1:
        raise InputError(f"--workers must be at least 1, not {workers}")
    address = re.fullmatch(r"(dask|tls)://([^/\s:]+|\[[\da-fA-F:.]+\]):(\d{1,5})/?", on)
    if address is None and on not in ("here", "slurm"):
        raise InputError(f"--on {on} is no place: there are here, dask://HOST:PORT, tls://HOST:PORT and slurm")
    if on != "slurm" and any(jobs.values()):
        raise InputError("--account and --partition are of jobs of Slurm: give --on slurm, too")
    if address is not None and workers is not None:
        raise InputError(f"--workers is not for --on {on}, whose workers run already")
    if on == "here":
        return Here(workers) if workers else HERE
    say = tell or log.warning
    instead = (lambda reason: say(f"{reason}; this process makes the parts instead")) if or_here else None
    stack = ExitStack()
    try:
        with stack:
            stack.enter_context(_dask(on))
            if address is not None:
                client = _client(stack, on.replace("dask:", "tcp:"), on)
                _wait_for_one(client, on, say)
            else:
                workers = workers or WORKERS
                client = _slurm(stack, workers, jobs, say)
            return DaskEngine(client, workers, or_here=instead, closing=stack.pop_all().close)
    except EngineError as error:
        if instead is None:
            raise
        instead(str(error))
        return HERE


def _client(stack: ExitStack, place: Any, name: str) -> Client:
    """A client of a scheduler: its address, or a cluster of this process."""
    from distributed import Client

    try:
        client: Client = Client(place, timeout=_CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise EngineError(
            f"no scheduler of Dask answers at {name}: see whether it runs, and whether host and port are right "
            f"({str(error).splitlines()[0]})"
        ) from error
    stack.callback(_ended, client.close, timeout=_CONNECT_S)
    return client


def _wait_for_one(client: Client, name: str, say: Callable[[str], None]) -> None:
    """Wait for a worker of the scheduler that has this name. Raises EngineError where none comes."""
    try:
        if not client.nthreads():
            say(f"{name} has no worker: start some, as `dask worker {name.partition('//')[2]}`; waiting {_IDLE_S} s")
            client.wait_for_workers(1, timeout=_IDLE_S)
    except OSError as error:  # of which a TimeoutError is one
        raise EngineError(f"the scheduler {name} has no worker: start some, where the store is seen") from error


def _slurm(stack: ExitStack, workers: int, jobs: SlurmJobs, say: Callable[[str], None]) -> Client:
    """A client of a scheduler in this process, whose workers are jobs of Slurm; the jobs end with the stack."""
    from dask import config
    from dask_jobqueue import SLURMCluster

    from .slurm import Slurm

    slurm, name = Slurm(), f"whorl-{uuid4().hex[:12]}"
    of_site = config.get("jobqueue.slurm")
    partition = jobs.get("partition") or of_site["queue"]
    unread = [] if of_site["log-directory"] else ["--output=/dev/null"]
    try:
        slurm.check()
        limits = [
            queue.longest_min
            for queue in slurm.partitions().values()
            if (queue.name == partition if partition else queue.default)
        ]
        cluster = SLURMCluster(
            cores=1, processes=1, memory=MEMORY, job_name=name, account=jobs.get("account"), queue=partition,
            walltime=str(int(min([LONGEST_MIN, *limits]))),
            job_extra_directives=[*of_site["job-extra-directives"], *unread],
            job_script_prologue=[f"export {LEAN}", *of_site["job-script-prologue"]],
            scheduler_options={"dashboard_address": "localhost:0", **of_site["scheduler-options"]},
            security=_certificates(stack, of_site["shared-temp-directory"] or "~"),
        )  # fmt: skip
        stack.callback(_ended, cluster.close, timeout=_CONNECT_S)
        client = _client(stack, cluster, "slurm")
        # Also the jobs of which no number is known: Ctrl-C reaches sbatch, too.
        stack.callback(_ended, slurm.ask, "scancel", f"--name={name}", f"--user={os.geteuid()}")
        cluster.scale(jobs=workers)
        _wait(client, slurm, name, cluster.job_script(), wait_s=jobs.get("wait_s", 600.0), say=say)
    except (OSError, SchedulerError) as error:
        raise EngineError(str(error).splitlines()[0]) from error
    return client


def _certificates(stack: ExitStack, folder: str) -> Security:
    """Who has no certificate of this cluster can give it no work. The jobs find theirs in a folder of this user alone,
    which ends with the stack: dask-jobqueue's own files stay where a job was refused."""
    from distributed.security import Security

    texts: dict[str, Any] = Security.temporary().get_tls_config_for_role("worker")
    shared = Path(os.path.expandvars(folder)).expanduser()
    private = Path(stack.enter_context(TemporaryDirectory(prefix=".whorl-workers-", dir=shared)))
    for kind in ("ca_file", "cert", "key"):
        (private / kind).write_text(texts[kind])
    of_roles = {
        f"tls_{role}_{kind}": str(private / kind)
        for role in ("scheduler", "worker", "client")
        for kind in ("cert", "key")
    }
    return Security(tls_ca_file=str(private / "ca_file"), require_encryption=True, **of_roles)


def _wait(client: Client, slurm: Slurm, name: str, script: str, *, wait_s: float, say: Callable[[str], None]) -> None:
    """Wait for the first worker. Raises EngineError or SchedulerError, with what Slurm says, where none comes."""
    began = spoke = time.monotonic()
    while not client.nthreads():
        time.sleep(_LOOK_S)
        queue = slurm.queue(name_prefix=name, user=os.geteuid())
        if not queue:
            slurm.test_start([], script)  # says why, where it refused them
        reasons = ", ".join(sorted({f"{job.state} {job.reason}".strip() for job in queue})) or "not queued yet"
        if queue and all(job.ended for job in queue):
            raise EngineError(
                f"the jobs of the workers ended before they had begun ({reasons}): set log-directory in "
                "~/.config/dask/jobqueue.yaml, and their output says why"
            )
        now = time.monotonic()
        if now - began > wait_s:
            raise EngineError(
                f"Slurm started no worker within {wait_s:g} s ({reasons}): try another partition or account, or later"
            )
        if now - spoke > _TELL_S:
            spoke = now
            say(f"waiting for Slurm to start the first worker ({reasons})")


def _ended(close: Callable[..., object], *arguments: object, **options: object) -> None:
    """Close what may be gone already, or never was started: what it says of that helps nobody."""
    with contextlib.suppress(OSError, AssertionError, RuntimeError, SchedulerError):
        close(*arguments, **options)


@contextlib.contextmanager
def _dask(on: str) -> Iterator[None]:
    """Dask is loaded, and logs nothing: of lost connections it logs tracebacks, and errors say the same in a sentence.

    Raises EngineError where it is not installed.
    """
    interrupted = signal.getsignal(signal.SIGINT)
    try:
        for needed in ("cryptography", "dask_jobqueue") if on == "slurm" else ("distributed",):
            import_module(needed)  # distributed sets the levels of loggers
    except ModuleNotFoundError as error:
        raise EngineError(f"--on {on} needs {error.name}: pip install 'whorl[dask]'") from error
    if signal.getsignal(signal.SIGINT) is not interrupted:  # dask-jobqueue's would end the program with status 0
        signal.signal(signal.SIGINT, interrupted)
    loggers = [logging.getLogger(name) for name in ("distributed", "tornado.application", "asyncio")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
