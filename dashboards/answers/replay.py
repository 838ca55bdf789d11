"""What policies would have done with a trace of jobs: the function of `whorl replay`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ...errors import InputError
from .reply import Reply, folder

if TYPE_CHECKING:
    from ...analysis.replay.setting import Answered
    from ...store import Store


class ReplayOptions(TypedDict, total=False):
    """The options of `whorl replay`; `DEFAULTS` has their usual values."""

    trace_format: str | None
    duration_unit: str
    processors_per_gpu: int
    cluster: str | None
    classes: Mapping[str, str]
    """The measured workload that stands for a model of the trace, as `--class` says it: {"resnet50": "gemm-fp32"}."""
    policy: str | Sequence[str]
    scheduler: str | Sequence[str]
    seeds: int
    seed: int | None
    nodes: int | None
    gpus_per_node: int | None
    locality_penalty: float
    backfill: str
    round: float | None
    """The length of a round, in s."""
    clock: str | None
    preemption_cost: float | None
    migration_cost: float
    failures: str | Path | None
    mtbf: float | None
    """Mean time between failures of a node, in hours."""
    repair: float
    """Mean time of a repair, in hours."""
    on_failure: str
    regimes: str | Path | None
    pairs: str | Path | None
    curves: str | Path | None
    knowledge: str
    knowledge_error: float
    gpu_power: float | None
    """In W, as the other powers are."""
    gpu_idle: float | None
    node_power: float | None
    asleep_power: float | None
    sleep_after: float | None
    wake: float
    deadline_slack: float | None
    pair_at_least: float
    alpha: float
    burst: Mapping[str, str | Path]
    """By model, a plan of `advise burst`."""
    backward: float
    foreground: float
    as_published: str | None
    profiles: Sequence[str | Path]
    plot: str | Path | None
    workers: int | None
    progress: Callable[[int, int], None] | None
    """Called with how many replays have ended, of how many."""


DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(ReplayOptions.__annotations__),
    "duration_unit": "auto", "processors_per_gpu": 1, "classes": {}, "policy": (), "scheduler": (), "seeds": 1,
    "locality_penalty": 1.0, "backfill": "none", "migration_cost": 0.0, "repair": 24.0, "on_failure": "restart",
    "knowledge": "exact", "knowledge_error": 0.3, "wake": 0.0, "pair_at_least": 1.1, "alpha": 1.0, "burst": {},
    "backward": 2 / 3, "foreground": 1.0, "profiles": (),
}  # fmt: skip
"""What each option is where it is left out: None, if nothing else stands here."""
_TYPED = ("store", "cluster", "classes", "nodes", "gpus_per_node", "regimes", "pairs", "node_power", "deadline_slack")
"""Options of their own at the command line; the others are keys of --world."""
_NOT_FIXED = {"policy", "scheduler", "seeds", "seed", "as_published", "profiles", "plot", "workers", "progress"}
"""What may be chosen for a simulation as published, too."""


def replay(
    trace: str | Path | Sequence[str | Path],
    store: Store | str | Path | None = None,
    **options: Unpack[ReplayOptions],
) -> Reply[Answered]:
    """Replay job traces on a measured fleet under several policies, as `whorl replay` does.

    `trace` is a file or several; without a store, `nodes` and `gpus_per_node` are the fleet. `frame` has a row for each
    replay; `findings` say what each policy gains. Raises InputError for options that do not go together, and where no
    replay is possible.
    """
    from ...analysis.replay.setting import as_published, general
    from ..documents import replay as documents
    from ..html import page, refuse_unwritable, write_page

    if unknown := sorted(options.keys() - DEFAULTS.keys()):
        raise TypeError(f"replay() has no option {unknown[0]!r}; it has {', '.join(DEFAULTS)}")
    chosen: dict[str, Any] = {**DEFAULTS, **options}
    paths = [Path(trace)] if isinstance(trace, str | Path) else [Path(path) for path in trace]
    _refuse_mixed(chosen, paths, store)
    chosen |= {
        "paths": paths,
        "store": None if store is None else folder(store),
        "policy": _names(chosen["policy"]),
        "scheduler": _names(chosen["scheduler"]),
        "profiles": tuple(map(Path, chosen["profiles"])),
    }
    plot = chosen["plot"]
    if plot is not None:
        refuse_unwritable(Path(plot), "--plot")
    setting = as_published(chosen) if chosen["as_published"] else general(chosen)
    answered = setting.answer(
        seeds=chosen["seeds"],
        workers=chosen["workers"] or os.cpu_count() or 1,
        record=plot is not None,
        progress=chosen["progress"],
    )
    if plot is not None:
        write_page(Path(plot), page(documents.replay_document(answered, setting.clocks, charts=True)))
    apart = setting.added if setting.apart else ()
    document = partial(documents.replay_document, clocks=setting.clocks)
    return Reply(answered, partial(documents.mapping, apart=apart), document)


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _refuse_mixed(chosen: Mapping[str, Any], paths: Sequence[Path], store: object) -> None:
    """Raises InputError for options that do not go together."""
    if not paths:
        raise InputError("give the jobs with --trace FILE..., and the GPUs with --store DIR")
    if chosen["as_published"]:
        fixed = [name for name, value in DEFAULTS.items() if name not in _NOT_FIXED and chosen[name] != value]
        changed = ["store"] if store is not None else fixed
        if changed:
            option = changed[0].replace("classes", "class").replace("_", "-")
            option = f"--{option}" if changed[0] in _TYPED else option
            raise InputError(f"--as-published fixes what {option} would change; leave out one of them")
        if not chosen["profiles"]:
            raise InputError("--as-published needs the study's profiles: --world profiles=FILE (or their folder)")
        return
    if chosen["profiles"]:
        raise InputError("profiles= works only with --as-published pal-sc24; the scores of a fleet come from --store")
    if chosen["cluster"] and store is None:
        raise InputError("--cluster names a cluster of a store: give the store with --store")
    if (chosen["nodes"] is None) != (chosen["gpus_per_node"] is None):
        raise InputError("give --nodes and --gpus-per-node together: they are the shape of the fleet")
    for name, number in chosen.items():
        if isinstance(number, float) and not math.isfinite(number):
            raise InputError(f"{name.replace('_', '-')} must be a finite number, not {number:g}")
    busy_w, idle_w = chosen["gpu_power"], chosen["gpu_idle"]
    if busy_w is not None and idle_w is not None and idle_w > busy_w:
        raise InputError(f"gpu-idle is {idle_w:g} W and gpu-power {busy_w:g} W: a busy GPU draws at least as much")
    if chosen["failures"] and chosen["mtbf"]:
        raise InputError("failures reads failures and mtbf draws them: use only one")
