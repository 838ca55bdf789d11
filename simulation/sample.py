"""Measurements of a small fleet as files in the layouts of real tools: generated, not measured.

The fleet is of simulated V100s with three planted faults, so that everything downstream can be tried without
a GPU or a download. The same seed and number of GPUs give the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from .campaigns import gemm_csv, pagerank_csv, resnet_csv
from .fleet import GPUS_PER_NODE, NODES_PER_CABINET, Fleet
from .identity import identities
from .models import V100
from .nvidia_smi import jobs_csv, node_csv

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
    who = identities(seed, gpus)
    planted = tuple(PlantedGpu(who[i].uuid, who[i].name, kind) for i, kind in fleet.planted.items())
    braked = next(i for i, kind in fleet.planted.items() if kind == "brake")
    texts = (
        gemm_csv(fleet, who),
        pagerank_csv(fleet, who),
        resnet_csv(fleet, who),
        node_csv(fleet, who, braked // GPUS_PER_NODE),
        jobs_csv(who, braked // GPUS_PER_NODE),
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
