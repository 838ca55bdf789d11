"""What `whorl replay` replays: traces, fleets, policies and schedulers, from the options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...store import Store
from . import published as study_of_pal
from .comparison import BASELINES
from .failures import Failure
from .from_store import Level, Measured, measured
from .job import Trace
from .options import Options
from .policies import POLICIES, find_policy
from .profiles import profiles
from .published_trace import published_trace
from .schedulers import SCHEDULERS, find_scheduler
from .study import General, Published, Study, read_failures
from .traces import Reading, assign, read_trace

DEFAULT = "packed,pm-first,pal"
_MOST_GPUS = 1_000_000


@dataclass
class Setting:
    """A study, and what to run of it."""

    study: Study
    policies: list[str]
    """Those asked for."""
    added: list[str]
    """Baselines beside them."""
    schedulers: list[str]
    against: tuple[str, ...]
    seed: int
    apart: bool = False
    """The baselines are no rows of the answer."""
    clocks: dict[str, list[str]] = field(default_factory=dict)
    """By scheduler, the policies that decide by rounds while their baselines decide at every event (own clocks)."""
    conditions: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def as_published(given: dict[str, Any]) -> Setting:
    """PAL (SC'24) as its artifact runs it."""
    traces = tuple(published_trace(path) for path in given["paths"])
    _once([trace.name for trace in traces])
    found = profiles(given["profiles"])
    baseline = study_of_pal.BASELINE
    policies = _known(given["policies"], "all", study_of_pal.POLICIES, "policy")
    return Setting(
        Published(traces, found),
        policies,
        [baseline],
        _known(given["schedulers"], "fifo", study_of_pal.SCHEDULERS, "scheduler"),
        ("packed-sticky", baseline),
        study_of_pal.SEED if given["seed"] is None else given["seed"],
        apart=True,
        conditions={
            "simulation": "as published: PAL (SC'24), with its artifact's oddities (docs/replay-as-published.md)",
            "traces": "; ".join(f"{trace.name}: {len(trace.jobs):,} jobs" for trace in traces),
            "fleet": f"{study_of_pal.NODES} nodes of {study_of_pal.GPUS_PER_NODE} GPUs, scores drawn from the profiles",
            "locality penalty": f"{study_of_pal.LOCALITY:g}",
            "clock": f"rounds of {study_of_pal.ROUND_S:g} s; jobs end at their edges",
        },
        notes=[note for trace in traces for note in trace.notes] + list(found.notes),
    )


def general(given: dict[str, Any]) -> Setting:
    """These traces on the measured fleet, or on one of the shape that was asked for."""
    reading = Reading(given["duration_unit"], given["processors_per_gpu"])
    traces = [read_trace(path, given["trace_format"], reading) for path in given["paths"]]
    _once([trace.name for trace in traces])
    return general_of(traces, given)


def general_of(traces: list[Trace], given: dict[str, Any]) -> Setting:
    """The same for traces that were read already."""
    if (given["nodes"] or 0) * (given["gpus_per_node"] or 0) > _MOST_GPUS:
        raise InputError(f"--nodes times --gpus-per-node is more than {_MOST_GPUS:,} GPUs; give a smaller fleet")
    chosen = given["classes"]
    fleets: Level | Measured
    if given["store"]:
        workloads, cluster = _workloads(given["store"], given["cluster"])
        traces = assign(traces, workloads, chosen)
        fleets, what, notes = _measured(given, traces, cluster)
    else:
        traces = assign(traces, (), chosen)
        fleets, what, notes = _level(given)
    example = fleets.draw(0)
    policies, schedulers = _general_names(given)
    failures = read_failures(given["failures"], fleets.node_names) if given["failures"] else ()
    conditions = {
        "traces": "; ".join(f"{trace.name}: {len(trace.jobs):,} jobs" for trace in traces),
        "fleet": f"{len(example):,} GPUs in {len(example.node_names):,} nodes, {what}",
        "locality penalty": f"{given['locality_penalty']:g}",
        "backfill": given["backfill"],
        "clock": _clock(given, policies, schedulers),
        "cost of a preemption, a migration": f"{given['preemption_cost']:g} s, {given['migration_cost']:g} s",
    }
    if given["mtbf"]:
        conditions["failures"] = f"drawn: every node each {given['mtbf']:g} h, for {given['repair']:g} h (means)"
    elif given["failures"]:
        conditions["failures"] = f"{len(failures):,} of {Path(given['failures']).name}"
    options = _options(given, _rounds(given, policies, schedulers), failures)
    return Setting(
        General(tuple(traces), fleets, options, given["mtbf"], given["repair"]),
        policies,
        [name for name in BASELINES if name not in policies],
        schedulers,
        BASELINES,
        given["seed"] or 0,
        clocks=_clocks(given, policies, schedulers),
        conditions=conditions,
        notes=[f"{trace.name}: {note}" for trace in traces for note in trace.notes] + notes,
    )


def _once(names: list[str]) -> None:
    """Stop where two traces have one name: nobody could tell their rows apart."""
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two trace files are named {name}; give each trace once, in a file with its own name")


def _split(texts: tuple[str, ...], default: str, what: str) -> list[str]:
    names = [name.strip() for text in texts or (default,) for name in text.split(",")]
    found = list(dict.fromkeys(name for name in names if name))
    if not found:
        raise InputError(f"--{what} names none; an example is --{what} {default}")
    return found


def _known(texts: tuple[str, ...], default: str, known: tuple[str, ...], what: str) -> list[str]:
    """The names asked for, each one of `known`; `all` is all of these."""
    names: list[str] = []
    for name in _split(texts, default, what):
        if name == "all":
            names += known
        elif name in known:
            names.append(name)
        else:
            raise InputError(f"no {what} is named {name!r}; there are {', '.join(known)}, and all")
    return list(dict.fromkeys(names))


def _general_names(given: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Policies and schedulers, under their own names where an alias was given."""
    policies = _split(given["policies"], DEFAULT, "policy")
    every = [policy.name for policy in POLICIES] if "all" in policies else []
    names = dict.fromkeys([*(find_policy(name).name for name in policies if name != "all"), *every])
    schedulers = _split(given["schedulers"], "fifo", "scheduler")
    if "all" in schedulers:
        return list(names), [scheduler.name for scheduler in SCHEDULERS]
    return list(names), list(dict.fromkeys(find_scheduler(name).name for name in schedulers))


def _clock(given: dict[str, Any], policies: list[str], schedulers: list[str]) -> str:
    """When decisions are made, and by whom: those who wait for the edge of a round pay for it."""
    slower = _by_rounds(policies, schedulers)
    edge = f"at the edges of rounds of {given['round_s']:g} s"
    event = "at every arrival, finish and failure"
    if given["clock"] == "rounds":
        return f"all decide {edge}"
    if given["clock"] == "events":
        like = f", also {', '.join(slower)}, which are made for rounds" if slower else ""
        return f"all decide {event}{like}"
    if not slower:
        return f"all decide {event}"
    if given["clock"] == "own":
        return f"{', '.join(slower)} decide {edge}, the others {event} (own clocks)"
    return (
        f"all decide {edge}, which {', '.join(slower)} need{'s' if len(slower) == 1 else ''} (--clock own: only these)"
    )


def _clocks(given: dict[str, Any], policies: list[str], schedulers: list[str]) -> dict[str, list[str]]:
    if given["clock"] != "own":
        return {}
    slower = _by_rounds(policies, ())
    return {name: slower for name in schedulers if slower and not find_scheduler(name).by_rounds}


def _by_rounds(policies: Sequence[str], schedulers: Sequence[str]) -> list[str]:
    """Those that are made to decide by rounds."""
    slower = [name for name in policies if find_policy(name).by_rounds]
    return slower + [name for name in schedulers if find_scheduler(name).by_rounds]


def _rounds(given: dict[str, Any], policies: Sequence[str], schedulers: Sequence[str]) -> bool | None:
    """Whether all decide by rounds; None: each by its own clock. Without the option: the clock that all can share."""
    clock: str | None = given["clock"]
    if clock is None:
        return bool(_by_rounds(policies, schedulers))
    return {"rounds": True, "events": False, "own": None}[clock]


def _options(given: dict[str, Any], rounds: bool | None, failures: tuple[Failure, ...]) -> Options:
    return Options(
        round_s=given["round_s"],
        rounds=rounds,
        backfill=given["backfill"],
        preemption_s=given["preemption_cost"],
        migration_s=given["migration_cost"],
        on_failure=given["on_failure"],
        failures=failures,
    )


def _workloads(store: str, cluster: str | None) -> tuple[list[str], str]:
    """The workloads measured on the one cluster that is meant, and its name."""
    from ..placement import available

    there = available(Store.open(store), cluster)
    clusters = list(dict.fromkeys(name for name, _ in there))
    if len(clusters) > 1:
        raise InputError(
            f"{store} has runs of {len(clusters)} clusters: {', '.join(clusters)}; choose one by --cluster"
        )
    if not clusters:
        where = f" of cluster {cluster}" if cluster else ""
        raise InputError(
            f"{store} holds no times{where} to score GPUs by; `whorl import --store {store} FILES` or `whorl probe run "
            f"--store {store} --suite quick` adds some"
        )
    return [workload for _, workload in there], clusters[0]


def _measured(given: dict[str, Any], traces: list[Trace], cluster: str) -> tuple[Level | Measured, str, list[str]]:
    from ..placement import scores

    used = sorted({job.workload for trace in traces for job in trace.jobs if job.workload})
    if not used and given["nodes"] is not None:  # no score is needed, and of the store's nodes none is
        return _level(given, "no job has a measured workload")
    found = scores(Store.open(given["store"]), used, cluster=cluster)
    fleets = measured(
        found, used, nodes=given["nodes"], gpus_per_node=given["gpus_per_node"], locality=given["locality_penalty"]
    )
    where = "in their measured nodes" if given["nodes"] is None else "drawn from those measured"
    notes = list(fleets.notes)
    notes += [
        f"{name}: no GPU is known to differ from another ({found.of[name].reason}), so there is nothing to gain"
        for name in used
        if not found.of[name].repeatable
    ]
    return fleets, f"{where} on {cluster}", notes


def _level(given: dict[str, Any], why: str = "without --store") -> tuple[Level, str, list[str]]:
    if given["nodes"] is None:
        raise InputError(
            "give a fleet: --store DIR for the GPUs measured there, or --nodes N and --gpus-per-node G for GPUs "
            "that are all equal"
        )
    level = Level(given["nodes"], given["gpus_per_node"], given["locality_penalty"])
    return level, "all alike", [f"{why}: all GPUs are equal, so choosing among them gains nothing"]
