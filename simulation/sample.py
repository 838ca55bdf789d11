"""Measurements of a small fleet as files in the layouts of real tools: generated, not measured.

The fleet is of simulated V100s with three planted faults, so that everything downstream can be tried without
a GPU or a download. The same seed and number of GPUs give the same bytes.

What `nvidia-smi --query-gpu=... --format=csv -l 1` would print beside one node of a simulated fleet, and its jobs.

The temperature follows a two-stage thermal model (die 1.5 s, heat sink 35 s) and at every second the clock is the
highest whose power fits under the cap at that temperature (docs/how-we-know/simulation.md), without the control loop's
own dynamics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from ..errors import InputError
from .campaigns import gemm_csv, pagerank_csv, resnet_csv
from .cluster import Identity, identities
from .draws import Floats, stream
from .fleet import CAP_SETTLES_AT, GPUS_PER_NODE, NODES_PER_CABINET, Fleet
from .load import IDLE, SGEMM
from .models import V100
from .physics import power, slowed

SECONDS = 120
LOAD = range(10, 100)
"""The seconds in which SGEMM runs; before and after the GPUs are idle."""

HEADER = (
    "timestamp, uuid, index, power.draw [W], temperature.gpu, clocks.current.sm [MHz], "
    "clocks.current.memory [MHz], utilization.gpu [%], memory.used [MiB]"
)
_UNREADABLE = 6  # how many readings of the stream say [N/A]
_MAY_FAIL = (3, 8)  # power.draw and memory.used
_IDLE_MIB, _LOADED_MIB = 4, 7884  # three square float matrices of n = 25536, and the context
_DIE_SHARE, _DIE_S = 0.35, 1.5
_SINK_SHARE, _SINK_S = 0.65, 35.0
_BEGINS = datetime(2026, 3, 1, 10, 0, 0, 123_000, tzinfo=UTC)
_JOBS = (
    (4201, "alice", "physics", 0, 8, 102, 1.0),
    (4201, "alice", "physics", 1, 8, 102, 1.0),
    (4202, "bob", "chemistry", 2, 8, 102, 0.5),
    (4203, "carol", "physics", 2, 8, 102, 0.5),
    (4204, "bob", "chemistry", 3, 55, 102, 1.0),
)
"""Job, user, account, device, first and last second, share. Device 3 works for 45 s before a job has it."""


def node_csv(fleet: Fleet, gpus: Sequence[Identity], node: int) -> str:
    """Two minutes of one node's four GPUs, one reading a second: idle, SGEMM, idle.

    The times are local and without zone, as the tool prints them. A GPU under a duty-cycled slowdown is
    caught at half its clock now and then. A few readings say [N/A].
    """
    first = node * GPUS_PER_NODE
    members = slice(first, first + GPUS_PER_NODE)
    random = stream(fleet.seed, "nvidia-smi.csv")
    silicon = fleet.silicon.take(members)
    cold = fleet.idle().temperature_c[members]
    rise = fleet.steady(SGEMM).temperature_c[members] - cold
    unreadable = set(random.choice(SECONDS * GPUS_PER_NODE, _UNREADABLE, replace=False).tolist())
    at = _BEGINS
    die = sink = 0.0  # share of the way from the idle to the loaded temperature
    lines = [HEADER]
    for second in range(SECONDS):
        busy = second in LOAD
        die += (float(busy) - die) * -np.expm1(-1 / _DIE_S)
        sink += (float(busy) - sink) * -np.expm1(-1 / _SINK_S)
        temperature = cold + (_DIE_SHARE * die + _SINK_SHARE * sink) * rise
        watts, clock = _reading(fleet, members, temperature, busy=busy)
        watts = watts + 0.2 * random.standard_normal(GPUS_PER_NODE)
        if busy:
            caught = random.random(GPUS_PER_NODE) < silicon.slowdown_share
            clock = np.where(caught, slowed(fleet.model, clock), clock)
        utilization = random.integers(97, 101, GPUS_PER_NODE) if busy else np.zeros(GPUS_PER_NODE)
        for device, identity in enumerate(gpus[members]):
            at += timedelta(milliseconds=int(random.integers(1, 4)))
            fields = [
                f"{at:%Y/%m/%d %H:%M:%S}.{at.microsecond // 1000:03d}",
                identity.uuid,
                f"{device}",
                f"{watts[device]:.2f} W",
                f"{temperature[device]:.0f}",
                f"{int(clock[device])} MHz",
                f"{fleet.model.memory_clock_mhz:.0f} MHz",
                f"{utilization[device]:.0f} %",
                f"{_LOADED_MIB if busy else _IDLE_MIB} MiB",
            ]
            reading = second * GPUS_PER_NODE + device
            if reading in unreadable:
                fields[_MAY_FAIL[reading % len(_MAY_FAIL)]] = "[N/A]"
            lines.append(", ".join(fields))
        at = at.replace(microsecond=123_000) + timedelta(seconds=1)
    return "".join(f"{line}\n" for line in lines)


def jobs_csv(gpus: Sequence[Identity], node: int) -> str:
    """Who had the node's GPUs in these two minutes: one row for each GPU of each job.

    One job has two GPUs, two jobs share one GPU, and one GPU works for a while without a job that is known.
    """
    members = gpus[node * GPUS_PER_NODE : (node + 1) * GPUS_PER_NODE]
    second = _BEGINS.replace(microsecond=0)
    lines = ["job_id,user,account,node,gpu,began,ended,share"]
    for job, user, account, device, first, last, share in _JOBS:
        identity = members[device]
        began, ended = (f"{second + timedelta(seconds=at):%Y-%m-%d %H:%M:%S}" for at in (first, last))
        lines.append(f"{job},{user},{account},{identity.host},{identity.uuid},{began},{ended},{share:g}")
    return "".join(f"{line}\n" for line in lines)


def _reading(fleet: Fleet, members: slice, temperature_c: Floats, *, busy: bool) -> tuple[Floats, Floats]:
    """Reported power (W) and SM clock (MHz) at a temperature: the highest clock under the cap."""
    silicon = fleet.silicon.take(members)
    clocks = fleet.model.clocks_mhz[:, None] if busy else fleet.model.clocks_mhz[:1, None]
    watts = silicon.sensor * power(fleet.model, silicon, SGEMM if busy else IDLE, clocks, temperature_c)
    fits = (watts <= CAP_SETTLES_AT * silicon.cap_w) & (clocks <= silicon.ceiling_mhz)
    best = np.maximum(fits.sum(axis=0) - 1, 0)  # power grows with the clock, so what fits comes first
    return watts[best, np.arange(len(best))], clocks[best, 0]


FILES = ("gemm.csv", "pagerank.csv", "resnet.csv", "nvidia-smi.csv", "jobs.csv")
GPUS = 96
SEED = 47
"""A seed whose three planted GPUs are the fleet's slow outliers under SGEMM, and no other GPU is."""

_FAULTS = 3
_MOST_GPUS = 999 * NODES_PER_CABINET * GPUS_PER_NODE  # cabinets have three digits


@dataclass(frozen=True)
class PlantedGpu:
    """A GPU that was made faulty: the ground truth for what analysis should find."""

    uuid: str
    name: str
    """Node and device, as in "c001-4/1"."""
    kind: str
    """"brake", "hot" or "pinned": `simulation/faults.py`."""


@dataclass(frozen=True)
class Sample:
    """What `write_sample` wrote."""

    files: tuple[Path, ...]
    planted: tuple[PlantedGpu, ...]
    gpus: int
    seed: int


def write_sample(folder: Path, *, gpus: int = GPUS, seed: int = SEED) -> Sample:
    """Write the measurements of a simulated fleet into a folder, which is made when it is not there.

    Files of the sample's names are replaced. InputError when the number of GPUs does not make whole nodes,
    the seed is negative, or the folder cannot be written.
    """
    if gpus % GPUS_PER_NODE or not 0 < gpus <= _MOST_GPUS:
        raise InputError(
            f"a sample holds whole nodes of {GPUS_PER_NODE} GPUs: give a multiple of {GPUS_PER_NODE} from "
            f"{GPUS_PER_NODE} to {_MOST_GPUS}, not {gpus}"
        )
    fleet = Fleet.draw(V100, gpus, seed, faults=_FAULTS)
    members = identities(seed, gpus)
    planted = tuple(PlantedGpu(members[i].uuid, members[i].name, kind) for i, kind in fleet.planted.items())
    braked = next(i for i, kind in fleet.planted.items() if kind == "brake")
    texts = (
        gemm_csv(fleet, members),
        pagerank_csv(fleet, members),
        resnet_csv(fleet, members),
        node_csv(fleet, members, braked // GPUS_PER_NODE),
        jobs_csv(members, braked // GPUS_PER_NODE),
    )
    paths = tuple(folder / name for name in FILES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, texts, strict=True):
            _write(path, text)
    except FileExistsError as error:
        raise InputError(f"{folder} is not a folder: name one that is, or that is not there yet") from error
    except OSError as error:
        raise InputError(f"the sample cannot be written to {folder}: {error.strerror or error}") from error
    return Sample(files=paths, planted=planted, gpus=gpus, seed=seed)


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all: a full disk must not leave half a measurement."""
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(text.encode())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
