"""What a campaign costs, and the job that measures one node."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..batch import BatchJob
from .asking import CampaignRequest
from .inventory import Target, comment_of, job_name

START_UP_S = 120.0
"""What a job takes beside measuring: Python and CUDA start, kernels are compiled. A guess on the safe side."""
NICE = 1000
"""How much lower than usual the priority of the jobs is."""


@dataclass(frozen=True, slots=True)
class How:
    """How the jobs are submitted. Unlike a request, it may change whenever a campaign goes on."""

    qos: str | None = None
    account: str | None = None
    nice: int = NICE
    setup: tuple[str, ...] = ()
    """Lines of shell before the command."""
    options: tuple[str, ...] = ()
    """Further options of sbatch, as `--constraint=a100`."""
    program: tuple[str, ...] | None = None
    """The words that call whorl on a node; None: with this Python."""
    template: Path | None = None
    output: Path | None = None
    """The folder of the jobs' output; None: `logs/CAMPAIGN` in the store."""
    start_up_s: float = START_UP_S

    @property
    def reserved(self) -> bool:
        """Whether the jobs go to a reservation."""
        return any(one.startswith("--reservation") for one in self.options)


@dataclass(frozen=True, slots=True)
class Cost:
    """What the jobs of some nodes cost at most."""

    jobs: int
    gpus: int
    measured_h: float
    """GPU-hours in which a GPU is measured."""
    allocated_h: float
    """GPU-hours that the scheduler counts: every GPU of a node for as long as its job runs."""


def job_s(request: CampaignRequest, gpus: int, how: How, neighbours: str | None = None) -> float:
    """How long the job of a node takes at most: its GPUs one after another, or with busy neighbours all at once."""
    rounds = gpus if (neighbours or request.neighbours) == "idle" else 1
    return request.expected_s() * rounds + how.start_up_s


def minutes(request: CampaignRequest, gpus: int, how: How) -> int:
    """The limit of the job's wall time."""
    return math.ceil(job_s(request, gpus, how) / 60)


def allocated_h(request: CampaignRequest, gpus: int, how: How, neighbours: str | None = None) -> float:
    """The GPU-hours that the job of one node is allocated at most."""
    return job_s(request, gpus, how, neighbours) * gpus / 3600


def cost(request: CampaignRequest, nodes: Sequence[Target], how: How, neighbours: str | None = None) -> Cost:
    """What it costs at most to measure these nodes."""
    gpus = sum(one.gpus for one in nodes)
    allocated = sum(allocated_h(request, one.gpus, how, neighbours) for one in nodes)
    return Cost(len(nodes), gpus, request.expected_s() * gpus / 3600, allocated)


def output_of(folder: Path, node: str) -> Path:
    """The file of the output of a node's jobs."""
    return folder / f"{node}.out"


def output_folder(store: Path, request: CampaignRequest, how: How) -> Path:
    """The folder of the jobs' output."""
    return (how.output or store / "logs" / request.campaign).resolve()


def batch_job(
    store: Path, request: CampaignRequest, target: Target, how: How, attempt: int = 1, gpus: Sequence[str] = ()
) -> BatchJob:
    """The job that measures a node, or only those of its GPUs that are named."""
    command = [*(how.program or (sys.executable, "-m", "whorl")), "probe", "run"]
    command += request.probes if request.named else ()
    command += ["--suite", request.suite, "--store", str(store.resolve()), "--campaign", request.campaign]
    command += ["--neighbours", request.neighbours, "--exclusive"]
    command += ["--cluster", request.cluster] if request.cluster else []
    command += ["--backend", "simulated", "--fleet", request.fleet] if request.fleet else []
    command += [word for gpu in gpus for word in ("--gpu", gpu)]
    return BatchJob(
        job_name(request.campaign, target.name, attempt),
        command,
        minutes(request, target.gpus, how),
        target.gpus,
        node=target.name,
        partition=target.partition,
        qos=how.qos,
        account=how.account,
        nice=how.nice or None,
        output=str(output_of(output_folder(store, request, how), target.name)).replace("%", "%%"),
        setup=how.setup,
        options=how.options,
        store=str(store.resolve()),
        comment=comment_of(store),
    )
