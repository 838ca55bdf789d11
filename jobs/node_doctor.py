"""What a node has of what measuring needs, there or asked by one tiny job, before a campaign sends thousands of jobs.

report = ask_node("fleet", scheduler=Slurm())    # on the login node: sends the job, waits for it, reads what it found
findings = node_findings("fleet")                # on the node

`whorl doctor` has the same findings and more (cli/answers/doctor.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DeviceError, InputError, SchedulerError, WhorlError
from .campaign import USUAL_OPTIONS, CampaignNode, CampaignRequest, SubmitOptions, campaign_nodes, make_output_folder
from .scheduler import Scheduler

if TYPE_CHECKING:
    from ..collectors.backend import Backend, Device

EVERYTHING = "everything"  # the purpose of packages that whorl always needs
MINUTES = 2  # the limit of the job: Python and CuPy may need a minute where a file system is slow
WAIT_S = 300.0
_NAME = "whorl-doctor"
_SETTLE_S = 20.0  # until a network file system shows what a node wrote
_SCHEMA = "whorl.campaign.doctor.node/1"
_SKEW_S = 60.0
_NVML_PATIENCE_S, _CUPY_PATIENCE_S = 30.0, 60.0


@dataclass(frozen=True)
class NodeFinding:
    """One thing that was checked: whether it works, and what it is, or why it does not work."""

    what: str
    works: bool
    detail: str
    needed_for: str = ""
    vital: bool = False  # whether whorl always needs it
    number: int | None = None  # how many GPUs it is about


_CUPY = partial(NodeFinding, "CuPy", needed_for="GPU kernels")


@dataclass(frozen=True)
class NodeReport:
    """What the job on a node found."""

    node: str
    job: str
    waited_s: float  # from its submission until its answer
    findings: tuple[NodeFinding, ...]

    @property
    def works(self) -> bool:
        """Whether everything works that measuring there needs."""
        return all(finding.works for finding in self.findings if finding.vital)


# -- on the node ----------------------------------------------------------------------------------------------


def node_findings(store: str | Path, fleet: str | Path | None = None) -> list[NodeFinding]:
    """What this node has of what measuring needs: Python, the driver, GPUs, CuPy, the store, its clock.

    With `fleet`, the file of a simulated cluster, its GPUs are those that count.
    """
    from ..store.names import this_host, this_node

    host = "" if this_node() == this_host() else f" (host {this_host()})"
    findings = [NodeFinding("node", True, this_node() + host, vital=True), *whorl_findings()]
    gpus = [replace(finding, vital=True) for finding in (nvml_finding(), cupy_finding())]
    gpus = [_simulated_gpus(fleet)] if fleet else gpus
    return [*findings, *gpus, *_store_findings(Path(store))]


def whorl_findings() -> list[NodeFinding]:
    """whorl itself, Python, and the packages that measuring needs."""
    from .. import __version__

    return [
        NodeFinding("whorl", True, __version__, EVERYTHING, vital=True),
        NodeFinding("python", sys.version_info >= (3, 11), sys.version.split()[0], EVERYTHING, vital=True),
        *(package_finding(name, EVERYTHING) for name in ("click", "numpy", "pyarrow")),
    ]


def package_finding(name: str, needed_for: str) -> NodeFinding:
    """Whether a package is installed."""
    vital = needed_for == EVERYTHING
    try:
        return NodeFinding(name, True, metadata.version(name), needed_for, vital)
    except metadata.PackageNotFoundError:
        return NodeFinding(name, False, f"not installed: pip install {name}", needed_for, vital)


def nvml_finding() -> NodeFinding:
    """Whether the NVIDIA driver answers, and which GPUs it shows."""
    row = partial(NodeFinding, "NVML", needed_for="measuring real GPUs")
    try:
        backend, devices = open_nvml()
    except InputError as error:
        return row(False, nvml_error(error))
    backend.close()
    gpus = [device.row for device in devices if device.parent is None]
    models = Counter(str(gpu["model"] or "unknown") for gpu in gpus)
    listed = ", ".join(f"{number} x {model}" for model, number in models.items())
    return row(True, f"driver {gpus[0]['driver'] or 'unknown'}, GPUs: {listed}", number=len(gpus))


def open_nvml() -> tuple[Backend, list[Device]]:
    """The backend of NVML, open, and its devices. Raises InputError where no driver answers in time."""
    from ..collectors.collect import open_backend

    connection = open_backend("nvml", {}, patience_s=_NVML_PATIENCE_S)
    assert connection is not None
    return connection


def nvml_error(error: InputError) -> str:
    """Why NVML does not answer, for a row that names NVML already."""
    return str(error).removeprefix("NVML: ")


def cupy_finding() -> NodeFinding:
    """Whether CuPy can be loaded, fits the driver, and shows GPUs."""
    from ..kernels.cupy_library import INSTALL

    if find_spec("cupy") is None:
        return _CUPY(False, f"not installed: {INSTALL}")
    late = f"loading it took over {_CUPY_PATIENCE_S:.0f} s"
    (finding,) = ask_apart(
        _CUPY, "from whorl.jobs.node_doctor import ask_cupy; ask_cupy()", patience_s=_CUPY_PATIENCE_S, late=late
    )
    return finding


def ask_cupy() -> None:
    """Print the finding about CuPy: the body of the other process."""
    from ..kernels.cupy_library import cuda_version, find_cupy, gpu_count

    prefix = ""
    try:
        cupy = find_cupy()
        prefix = f"{cupy.__version__}: "
        gpus = gpu_count(cupy)
    except InputError as error:
        print_findings([_CUPY(False, f"{prefix}{error}")])
    else:
        runtime = cupy.cuda.runtime
        built, driver = cuda_version(runtime.runtimeGetVersion()), cuda_version(runtime.driverGetVersion())
        print_findings([_CUPY(True, f"{cupy.__version__} for CUDA {built}, driver for {driver}, {gpus} GPUs")])


def ask_apart(
    row: Callable[[bool, str], NodeFinding], program: str, *arguments: str, patience_s: float, late: str
) -> list[NodeFinding]:
    """What a program finds in a process of its own, which calls `print_findings` at its end.

    For libraries: one that does not fit may end its process, and one may hang. Where the process gives no answer, `row`
    makes a finding of the reason; `late` is the reason where there is no answer in time.
    """
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {program}", *arguments]
    try:
        process = subprocess.run(  # noqa: S603 - our own interpreter, a constant program
            command, capture_output=True, text=True, timeout=patience_s, check=False
        )
    except subprocess.TimeoutExpired:
        return [row(False, late)]
    with contextlib.suppress(IndexError, ValueError):
        return [NodeFinding(**finding) for finding in json.loads(process.stdout.splitlines()[-1])]
    lines = process.stderr.strip().splitlines()
    reason = lines[-1] if lines else f"its process ended with status {process.returncode}"
    return [row(False, f"its library cannot be used: {reason}")]


def print_findings(findings: Sequence[NodeFinding]) -> None:
    """Print findings as a line that `ask_apart` reads."""
    sys.stdout.write(json.dumps([asdict(finding) for finding in findings]) + "\n")


def _simulated_gpus(fleet: str | Path) -> NodeFinding:
    from ..probes.simulated_node import choose_node

    try:
        node, gpus = choose_node(fleet, None)
    except (InputError, DeviceError) as error:
        return NodeFinding("GPUs", False, str(error), vital=True)
    detail = f"{len(gpus)} x {node.cluster.drawn.model.name}, simulated"
    return NodeFinding("GPUs", True, detail, vital=True, number=len(gpus))


def _store_findings(root: Path) -> list[NodeFinding]:
    """Whether runs can be stored from here, and whether the clock is that of the store's files."""
    from ..store import Store
    from ..store.system import files

    try:
        store = Store.open(root)
        if not store.writable():
            return [NodeFinding("store", False, f"{root}: this user may only read it from this node", vital=True)]
        files.touch(store.root)
    except WhorlError as error:
        return [NodeFinding("store", False, str(error), vital=True)]
    ahead_s = time.time() - files.clock(store.root)
    direction = "ahead of" if ahead_s > 0 else "behind"
    wrong = f"{abs(ahead_s):,.0f} s {direction} that of the store's file system"
    clock = NodeFinding("clock", True, f"within {_SKEW_S:g} s of that of the store's file system")
    clock = clock if abs(ahead_s) <= _SKEW_S else NodeFinding("clock", False, wrong)
    return [NodeFinding("store", True, f"{root}: rows can be stored", vital=True), clock]


def as_line(findings: Sequence[NodeFinding]) -> str:
    """What a node found, as a line of JSON that `ask_node` reads."""
    return json.dumps({"schema": _SCHEMA, "findings": [asdict(finding) for finding in findings]})


# -- on the login node ----------------------------------------------------------------------------------------


def ask_node(
    store: str | Path,
    request: CampaignRequest,
    *,
    scheduler: Scheduler,
    options: SubmitOptions = USUAL_OPTIONS,
    wait_s: float = WAIT_S,
    tell: Callable[[str], None] = lambda _: None,
) -> NodeReport:
    """Send one job to a node, an idle one if there is one, and read what it found; the store is made if needed.

    `request` says which nodes may be chosen. `tell` hears when the job is sent. Raises InputError for a node that the
    scheduler does not know, SchedulerError where the job did not start or did not answer in time: it is cancelled then.
    """
    from .. import __version__
    from ..store import Store

    node = _choose_node(scheduler, request, options)
    root = Store.create(store).root.resolve()
    output = make_output_folder(root, request, options) / f"{node.name}-{time.time_ns()}.out"
    words = ["campaign", "doctor", "--here", "--store", str(root)]
    words += ["--set", f"fleet={Path(request.fleet).resolve()}"] if request.fleet else []
    job = replace(options.job(f"{_NAME}:{node.name}", words, MINUTES, node, root), output=str(output))
    began = time.monotonic()
    answer = scheduler.submit(scheduler.render(job, options.template))
    if answer.job is None:
        raise SchedulerError(f"{scheduler.title} took no job for node {node.name}: {answer.message}")
    tell(f"job {answer.job} is sent to node {node.name}; waiting for at most {wait_s:g} s")
    try:
        findings = _wait(scheduler, answer.job, output, began + wait_s)
    except BaseException:
        with contextlib.suppress(SchedulerError):  # it ends after MINUTES by itself
            scheduler.cancel(answer.job)
        raise
    output.unlink(missing_ok=True)
    for finding in tuple(findings):
        if finding.number is not None and finding.number != node.gpus:
            numbers = f"{scheduler.title} says {node.gpus}, the node has {finding.number}"
            findings.append(NodeFinding(f"{scheduler.title}'s GPUs", False, numbers, vital=True))
        if finding.what == "whorl" and finding.detail != __version__:
            versions = f"{finding.detail} on the node, {__version__} here: install the same on both"
            findings.append(NodeFinding("version", False, versions, vital=True))
    return NodeReport(node.name, answer.job, time.monotonic() - began, tuple(findings))


def _choose_node(scheduler: Scheduler, request: CampaignRequest, options: SubmitOptions) -> CampaignNode:
    """The node that is asked: an idle one, or else any that takes jobs."""
    nodes = campaign_nodes(request, options, scheduler.nodes(), scheduler.partitions(), title=scheduler.title)
    able = sorted((node for node in nodes if node.obstacle is None), key=lambda node: not node.idle)
    if not able:
        obstacles = "; ".join(f"{node.name}: {node.obstacle}" for node in nodes[:3])
        raise SchedulerError(f"no node takes a job now ({obstacles})")
    return able[0]


def _wait(scheduler: Scheduler, job: str, output: Path, last: float) -> list[NodeFinding]:
    """What the job found, once it says so; SchedulerError where it does not in time, or ends without an answer."""
    ended: float | None = None
    pause_s = 0.2
    while True:
        findings, text = _read(output)
        if findings is not None:
            return findings
        now = time.monotonic()
        queue = [] if ended else scheduler.queue(name_prefix=_NAME, user=os.geteuid())
        row = next((queued for queued in queue if queued.job == job), None)
        if ended is None and (row is None or row.ended):
            ended = now  # a network file system may show its output a little later
        if ended is not None and now > ended + _SETTLE_S:
            lines = text.strip().splitlines()[-1:] or [f"it wrote nothing to {output} that can be seen here"]
            raise SchedulerError(f"job {job} ended without an answer: {lines[0]}")
        if row is not None and ended is None and now > last:
            reason = f" ({row.reason})" if row.reason not in ("", "None") else ""
            raise SchedulerError(
                f"job {job} is {row.state.lower()}{reason} and gave no answer in time, so it is cancelled: choose "
                "another one with --nodes, or a longer --set wait=TIME"
            )
        time.sleep(pause_s)
        pause_s = min(5.0, 1.3 * pause_s)


def _read(output: Path) -> tuple[list[NodeFinding] | None, str]:
    """What a job found, if its output says so, and the output."""
    try:
        text = output.read_text(errors="replace")
    except OSError:
        return None, ""
    for line in text.splitlines():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            document = json.loads(line)
            if document["schema"] == _SCHEMA:
                return [NodeFinding(**row) for row in document["findings"]], text
    return None, text
