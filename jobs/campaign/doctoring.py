"""What a node sees, by one tiny job: whether a campaign could measure there, before it sends thousands of jobs.

answer = doctor("fleet")        # on the login node: sends the job, waits for it, reads what it found
findings = seen_here("fleet")   # on the node
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import DeviceError, InputError, SchedulerError, StoreError, WhorlError
from ..doctor import Finding
from .planning import How

if TYPE_CHECKING:
    from ..slurm import Slurm
    from .inventory import Target

MINUTES = 2
"""The limit of the job: Python and CuPy may need a minute where a file system is slow."""
WAIT_S = 300.0
_SETTLE_S = 20.0  # until a network file system shows what a node wrote
_SCHEMA = "whorl.campaign.doctor.node/1"
_SKEW_S = 60.0


@dataclass(frozen=True)
class Answer:
    """What the job on a node found."""

    node: str
    job: str
    waited_s: float
    """From its submission until its answer."""
    findings: tuple[Finding, ...]

    @property
    def works(self) -> bool:
        """Whether everything works that measuring there needs."""
        return all(one.works for one in self.findings if one.vital)


# -- on the node ----------------------------------------------------------------------------------------------


def seen_here(store: str | Path, fleet: str | Path | None = None) -> list[Finding]:
    """What this node has of what measuring needs: Python, the driver, GPUs, CuPy, the store, its clock.

    With `fleet`, the file of a simulated cluster, its GPUs are those that count.
    """
    from ...store.names import this_host, this_node
    from .. import doctor

    host = "" if this_node() == this_host() else f" (host {this_host()})"
    found = [Finding("node", True, this_node() + host, vital=True), *doctor.node_findings()]
    return [*found, *(_simulated(fleet) if fleet else doctor.gpu_findings()), *_store(Path(store))]


def _simulated(fleet: str | Path) -> list[Finding]:
    from ..fleet_file import choose_node

    try:
        node, gpus = choose_node(fleet, None)
    except (InputError, DeviceError) as error:
        return [Finding("GPUs", False, str(error), vital=True)]
    detail = f"{len(gpus)} x {node.cluster.drawn.model.name}, simulated"
    return [Finding("GPUs", True, detail, vital=True, number=len(gpus))]


def _store(root: Path) -> list[Finding]:
    """Whether runs can be stored from here, and whether the clock is that of the store's files."""
    from ...store import Store
    from ...store.system import files

    try:
        opened = Store.open(root)
        if not opened.writable():
            return [Finding("store", False, f"{root}: this user may only read it from this node", vital=True)]
        files.touch(opened.root)
    except WhorlError as error:
        return [Finding("store", False, str(error), vital=True)]
    ahead_s = time.time() - files.clock(opened.root)
    found = [Finding("store", True, f"{root}: rows can be stored", vital=True)]
    if abs(ahead_s) > _SKEW_S:
        way = "ahead of" if ahead_s > 0 else "behind"
        return [*found, Finding("clock", False, f"{abs(ahead_s):,.0f} s {way} that of the store's file system")]
    return [*found, Finding("clock", True, f"within {_SKEW_S:g} s of that of the store's file system")]


def document(found: Sequence[Finding]) -> str:
    """What a node found, as one line for `doctor`."""
    return json.dumps({"schema": _SCHEMA, "findings": [asdict(one) for one in found]})


# -- on the login node ----------------------------------------------------------------------------------------


def doctor(
    store: str | Path,
    *,
    node: str | None = None,
    partition: str | None = None,
    fleet: str | Path | None = None,
    how: How | None = None,
    wait_s: float = WAIT_S,
    tell: Callable[[str], None] | None = None,
) -> Answer:
    """Send one job to a node, an idle one if none is named, and read what it found; the store is made if needed.

    `tell` hears when the job is sent. Raises InputError for a node that Slurm does not know, SchedulerError where the
    job did not start or did not answer in time: it is cancelled then.
    """
    from ... import __version__
    from ...store import Store
    from ..batch import BatchJob, render
    from ..slurm import Slurm
    from .inventory import reach

    how, slurm = how or How(), Slurm()
    reach(slurm)
    target = _target(slurm, node, partition, None if fleet is None else str(fleet), reserved=how.reserved)
    opened = Store.create(store)
    output = _output(opened.root, how) / f"{target.name}-{time.time_ns()}.out"
    words = [*(how.program or (sys.executable, "-m", "whorl")), "campaign", "doctor", "--here"]
    words += ["--store", str(opened.root.resolve()), *(["--fleet", str(Path(fleet).resolve())] if fleet else [])]
    job = BatchJob(
        f"whorl-doctor:{target.name}",
        words,
        MINUTES,
        target.gpus,
        node=target.name,
        partition=target.partition,
        qos=how.qos,
        account=how.account,
        output=str(output),
        setup=how.setup,
        options=how.options,
        store=str(opened.root.resolve()),
    )
    began = time.monotonic()
    sent = slurm.submit(render("slurm", job, how.template))
    if sent.job is None:
        raise SchedulerError(f"Slurm took no job for node {target.name}: {sent.message}")
    if tell:
        tell(f"job {sent.job} is sent to node {target.name}; waiting for at most {wait_s:g} s")
    try:
        found = _wait(slurm, sent.job, output, began + wait_s)
    except BaseException:
        _cancel(slurm, sent.job)
        raise
    output.unlink(missing_ok=True)
    found += _compared(found, target.gpus, __version__)
    return Answer(target.name, sent.job, time.monotonic() - began, tuple(found))


def _target(slurm: Slurm, node: str | None, partition: str | None, fleet: str | None, *, reserved: bool) -> Target:
    """The node that is asked: this one, or else an idle one, or else any that takes jobs."""
    from .asking import CampaignRequest
    from .inventory import targets

    request = CampaignRequest("doctor", "quick", (), False, "busy", partition, node, fleet)
    every = targets(slurm.nodes(), slurm.partitions(), request, lambda _: MINUTES, reserved=reserved)
    able = [one for one in every if one.why_not is None]
    if not able:
        says = "; ".join(f"{one.name}: {one.why_not}" for one in every[:3])
        raise SchedulerError(f"no node takes a job now ({says})")
    return next((one for one in able if one.idle), able[0])


def _output(root: Path, how: How) -> Path:
    from ...store.system.files import make_folder

    folder = (how.output or root / "logs" / "doctor").resolve()
    try:
        if root.resolve() in folder.parents:
            make_folder(folder)  # other users of the store write there, too
        else:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder}, where the job writes, cannot be made: {error.strerror}") from error
    return folder


def _wait(slurm: Slurm, job: str, output: Path, last: float) -> list[Finding]:
    """What the job found, once it says so; SchedulerError where it does not in time, or ends without an answer."""
    ended, pause = None, 0.2
    while True:
        found, text = _read(output)
        if found is not None:
            return found
        now = time.monotonic()
        state, reason = ("", "") if ended else _state(slurm, job)
        if not ended and state in ("", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"):
            ended = now  # a network file system may show its output a little later
        if ended and now > ended + _SETTLE_S:
            said = text.strip().splitlines()[-1:] or [f"it wrote nothing to {output} that can be seen here"]
            raise SchedulerError(f"job {job} ended without an answer: {said[0]}")
        if now > last and not ended:
            why = f" ({reason})" if reason not in ("", "None") else ""
            raise SchedulerError(
                f"job {job} is {state.lower()}{why} and gave no answer in time, so it is cancelled: choose another "
                "--node, or a longer --wait"
            )
        time.sleep(pause)
        pause = min(5.0, 1.3 * pause)


def _state(slurm: Slurm, job: str) -> tuple[str, str]:
    """State and reason of a job; "" for one that Slurm has forgotten."""
    done = slurm.ask("squeue", "-h", "-t", "all", "-j", job, "-o", "%T|%r")
    state, _, reason = done.stdout.strip().partition("|")
    return state, reason


def _cancel(slurm: Slurm, job: str) -> None:
    with contextlib.suppress(SchedulerError):  # it ends after MINUTES by itself
        slurm.ask("scancel", job)


def _read(output: Path) -> tuple[list[Finding] | None, str]:
    """What a job found, if its output says so, and the output."""
    try:
        text = output.read_text(errors="replace")
    except OSError:
        return None, ""
    for line in text.splitlines():
        try:
            known = json.loads(line)
            if known["schema"] == _SCHEMA:
                return [Finding(**one) for one in known["findings"]], text
        except (ValueError, TypeError, KeyError):
            continue
    return None, text


def _compared(found: Sequence[Finding], gpus: int, version: str) -> list[Finding]:
    """What differs between the node, Slurm and this machine."""
    more = []
    theirs = {one.what: one for one in found}
    shown = next((one.number for one in found if one.number is not None), None)
    if shown is not None and shown != gpus:
        more.append(Finding("Slurm's GPUs", False, f"Slurm says {gpus}, the node has {shown}", vital=True))
    if "whorl" in theirs and theirs["whorl"].detail != version:
        detail = f"{theirs['whorl'].detail} on the node, {version} here"
        more.append(Finding("version", False, f"{detail}: install the same on both", vital=True))
    return more
