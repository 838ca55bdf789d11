"""The conditions of a run, as its row of `runs` records them: what was asked for, and what was found.

Their keys stand in `store.conditions`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..kernels.work import Work
from ..store.vocabulary import ClockSetting
from .catalogue import Probe
from .effort import Effort

PERIOD_S, DUTY = 0.2, 0.5
"""Of the square wave, where nothing else is asked for."""


@dataclass(frozen=True)
class Asked:
    """What a campaign asks of every probe; None where nothing is asked for."""

    effort: Effort
    seed: int = 1
    """Of the inputs."""
    precision: float | None = None
    """Relative half width of the interval; None for that of the effort."""
    repeats: int | None = None
    """At least so many; None for those of the effort."""
    time_limit_s: float | None = None
    """Measured at most so long; None for that of the effort."""
    start_temperature_c: float | None = None
    """Cooled down to before a probe begins."""
    cool_down_s: float = 120.0
    """At most so long."""
    period_s: float = PERIOD_S
    """Of the square wave, and of the pulses of a soak."""
    duty: float = DUTY
    """Share of that time under load."""
    until_wrong: bool = False
    """soak: whether it ends at the first wrong result."""
    input: str | None = None
    """Distribution of the input data, for kernels that take one."""

    @property
    def half_width(self) -> float:
        return self.effort.precision if self.precision is None else self.precision

    @property
    def limit_s(self) -> float:
        return self.effort.limit_s if self.time_limit_s is None else self.time_limit_s

    @property
    def soak_s(self) -> float:
        """How long a soak takes."""
        return self.effort.soak_s if self.time_limit_s is None else self.time_limit_s

    @property
    def least_repeats(self) -> int:
        return self.effort.repeats if self.repeats is None else self.repeats


@dataclass(frozen=True)
class Setting:
    """What holds for a whole campaign on a GPU, whatever the probe."""

    neighbours: str
    """'idle' or 'busy'."""
    locked_clock_mhz: float | None = None
    """None: the clock is free."""
    power_limit_w: float | None = None
    more: Mapping[str, object] = field(default_factory=dict)
    """What else is known of the GPU's modes, by name."""


def asked_of(probe: Probe, asked: Asked, setting: Setting) -> dict[str, object]:
    """The conditions that are known before a run begins: a run whose ones are the same need not be repeated."""
    conditions: dict[str, object] = {
        "suite": asked.effort.suite,
        "kernel": probe.kernel,
        "seed": asked.seed,
        "asked_precision": asked.half_width,
        "asked_repeats": asked.least_repeats,
        "time_limit_s": asked.soak_s if probe.kind == "soak" else asked.limit_s,
        "asked_start_temperature_c": asked.start_temperature_c,
        "asked_input": asked.input,
        "clock": ClockSetting.FREE if setting.locked_clock_mhz is None else ClockSetting.LOCKED,
        "locked_clock_mhz": setting.locked_clock_mhz,
        "asked_power_limit_w": setting.power_limit_w,
        "neighbours": setting.neighbours,
    }
    if probe.kind in ("square", "soak"):
        conditions |= {"period_s": asked.period_s, "duty": asked.duty}
    return conditions


_CHANGES_RESULTS = re.compile("CUBLAS_|CUBLASLT_|NVIDIA_TF32_OVERRIDE$|CUPY_TF32$|CUDA_")
_PLACES_ONLY = re.compile("CUDA_.*(HOME|PATH|ROOT|DIR|DIRECTORY|VISIBLE_DEVICES|VERSION)$")
"""Variables of CUDA that only say where something is, or which GPUs are meant."""
_CONTAINERS = (
    ("apptainer", ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"), ("/.singularity.d",)),
    ("kubernetes", ("KUBERNETES_SERVICE_HOST",), ()),
    ("podman", (), ("/run/.containerenv",)),
    ("docker", (), ("/.dockerenv",)),
)
_CGROUP = re.compile("docker|containerd|libpod|crio|lxc")


def process_conditions(root: Path = Path("/")) -> dict[str, object]:
    """What changes the figures of this process on any GPU: MPS, container and variables; None where unknown.

    `root` is where the files of the machine are looked for.
    """
    pipes = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", root / "tmp/nvidia-mps"))
    share = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "")
    variables = {
        name: value
        for name, value in sorted(os.environ.items())
        if _CHANGES_RESULTS.match(name) and not _PLACES_ONLY.match(name)
    }
    return {
        "mps": (pipes / "control").exists(),
        "mps_share_pct": float(share) if re.fullmatch(r"\d+(\.\d+)?", share) else None,
        "container": _container(root),
        "environment": variables or None,
    }


def _container(root: Path) -> str | None:
    for name, variables, paths in _CONTAINERS:
        if any(os.environ.get(variable) for variable in variables) or any(
            (root / path.lstrip("/")).exists() for path in paths
        ):
            return name
    try:
        cgroup = (root / "proc/self/cgroup").read_text()
    except OSError:
        return None
    return "other" if _CGROUP.search(cgroup) else None


def of_work(works: Sequence[Work]) -> dict[str, object]:
    """What was run: of several works, as those of a scan, the first one's."""
    if not works:
        return {}
    work = works[0]
    return {
        "precision": work.precision,
        "path": work.path,
        "flop": work.flop,
        "bytes": work.bytes,
        "operations": work.operations,
        "input": work.input,
        "parameters": {name: size for name, size in work.parameters.items() if not isinstance(size, str)},
        "works": len(works),
    }
