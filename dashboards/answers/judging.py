"""What is wrong with which GPU, and how much the GPUs differ: the functions of the verbs of that kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...store.instants import seconds_of, time_of
from .reply import Reply, RowList, folder, opened

if TYPE_CHECKING:
    from ...analysis import Across, Variability
    from ...analysis.engines import Engine
    from ...analysis.one_gpu.explain import Explained, SharedFinding
    from ...analysis.verdicts import Judgement
    from ...analysis.verdicts.difference import Difference
    from ...analysis.verdicts.fingerprint import Fingerprints
    from ...analysis.verdicts.plan import Planned
    from ...store import Store

PLANNED_PROBES = ("gemm-fp32", "stream-triad")
"""The probes of a plan where none is named: the cores and the memory."""
LEAST_REPLICATES = 100
"""Of fewer, the ends of a 95 % interval are a few replicates, and may leave out the estimate itself."""


def verdicts(
    store: Store | str | Path,
    *,
    cluster: str | None = None,
    campaign: str | None = None,
    since: datetime | str | None = None,
    engine: Engine | None = None,
    progress: Callable[[str], None] | None = None,
) -> Reply[Sequence[Judgement]]:
    """Judge every GPU against its peers and its own past, and store the findings, as `whorl verdicts` does.

    `frame` has a row for each finding, the worst first. `since`: a time (UTC), or how long ago: "30d". `engine`: where
    telemetry is read (None: in this process). Raises InputError where there are no runs, StoreError where there is no
    store.
    """
    from ...analysis.engines import HERE
    from ...analysis.verdicts.judgements import conclude
    from ..documents.verdicts import document as words
    from . import mappings

    concluded = conclude(
        opened(store), cluster=cluster, campaign=campaign, since=time_of(since), engine=engine or HERE,
        progress=progress,
    )  # fmt: skip
    document = partial(words, store=folder(store))
    rows = RowList(of=mappings.FINDING)
    reply: Reply[Sequence[Judgement]] = Reply(
        concluded.judgements, mappings.verdicts, document, rows=rows, notes=concluded.notes
    )
    return reply.covering(concluded.coverage)


def explain(
    store: Store | str | Path, name: str, *, cluster: str | None = None
) -> Reply[Explained] | Reply[SharedFinding]:
    """Explain one GPU, or a finding about a node or a batch of GPUs, as `whorl explain` does.

    `name` is node/slot, the UUID, the serial number, or a part that no other GPU has: then the answer has rank,
    history, cause and what to do, and `frame` a row for each workload in which it was measured, the slowest first. Or
    it is the name of a node, batch or rank that has a finding: `frame` has a row for each finding. Raises InputError
    where nothing or several fit.
    """
    from ...analysis.one_gpu import explain as explaining
    from ...analysis.one_gpu.standing import Place
    from ..documents.gpu import document, shared_document
    from . import mappings

    read = opened(store)
    try:
        explained = explaining.explain(read, name, cluster=cluster)
    except InputError:
        if (shared := explaining.shared_finding(read, name, cluster)) is None:
            raise
        words = partial(shared_document, store=folder(store))
        return Reply(shared, mappings.shared, words, rows=RowList("verdicts", mappings.FINDING))
    return Reply(explained, mappings.explain, partial(document, store=folder(store)), rows=RowList("places", Place))


def fingerprint(
    store: Store | str | Path, *, cluster: str | None = None, gpu: str | None = None, engine: Engine | None = None,
    progress: Callable[[str], None] | None = None,
) -> Reply[Fingerprints]:  # fmt: skip
    """Compute the fingerprints of a cluster's GPUs and store them, as `whorl verdicts fingerprint` does.

    `frame` has a row for each figure of each GPU, or of the one that `gpu` names. `engine` as of `verdicts`. Raises
    InputError where there are no runs, and where no GPU or several fit.
    """
    from ...analysis.engines import HERE
    from ...analysis.verdicts.fingerprint import fingerprints
    from ..documents.variability import fingerprints as words
    from . import mappings

    computed = fingerprints(opened(store), cluster=cluster, gpu=gpu, engine=engine or HERE, progress=progress)
    document = partial(words, store=folder(store))
    return Reply(computed, mappings.fingerprints, document, notes=computed.notes).covering(computed.coverage)


def diff(
    store: Store | str | Path, *, before: datetime | str, after: datetime | str, cluster: str | None = None
) -> Reply[Difference]:
    """Compare every GPU with itself: its runs before a time with those since another, as `whorl verdicts diff` does.

    `frame` has a row for each GPU that moved against the fleet. Times are UTC, or how long ago: "30d". Raises
    InputError where the times are in the wrong order, or one side has no runs.
    """
    from ...analysis.verdicts.difference import Moved, difference
    from ..documents import followup
    from . import mappings

    changed = difference(opened(store), time_of(before), time_of(after), cluster=cluster)
    document = partial(followup.difference, store=folder(store))
    return Reply(changed, mappings.difference, document, rows=RowList("moved", Moved))


def plan(
    store: Store | str | Path,
    *,
    budget: float | str = 7200.0,
    probe: str | Sequence[str] = PLANNED_PROBES,
    suite: str = "quick",
    threshold: float = 3.0,
    cluster: str | None = None,
) -> Reply[Planned]:
    """Say which GPUs to probe next, as `whorl verdicts plan` does.

    `budget`: GPU time, in s or as "2h"; `threshold`: per cent slower that matters. `frame` has a row for each GPU,
    the most telling first. Raises InputError where there are no GPUs, several clusters and none named, or no such
    probe.
    """
    from ...analysis.verdicts.plan import Next, planned
    from ...collectors.claim import backends_again
    from ...probes.campaign import Plan
    from ...probes.catalogue import choose
    from ...probes.conditions import Asked
    from ...probes.effort import EFFORTS
    from ..documents import followup
    from . import mappings

    budget_s = seconds_of(budget)
    if not budget_s > 0:
        raise InputError("the budget must be longer than 0 s")
    if suite not in EFFORTS:
        raise InputError(f"there is no suite {suite!r}; there are {', '.join(EFFORTS)}")
    chosen = choose((probe,) if isinstance(probe, str) else tuple(probe))
    seconds = Plan(chosen, Asked(EFFORTS[suite]), "plan").expected_s()
    names = [each.name for each in chosen]
    read = opened(store)
    plan = planned(read, names, budget_s=budget_s, seconds=seconds, cluster=cluster, threshold_pct=threshold)
    simulated = backends_again(read, plan.cluster)
    todo = list(followup.commands(plan, folder(store), suite, simulated))
    document = partial(followup.plan, todo=todo, simulated=simulated)
    return Reply(plan, partial(mappings.plan, todo=todo), document, rows=RowList("gpus", Next))


def variability(
    store: Store | str | Path,
    *,
    cluster: str | Sequence[str] = (),
    workload: str | Sequence[str] = (),
    replicates: int = 1000,
    seed: int | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> Reply[Sequence[Variability]]:
    """Say how much the GPUs differ, per cluster and workload, as `whorl verdicts variability` does.

    `frame` has two rows for each workload: of level `run` and of level `gpu`. `cluster` and `workload` are one name or
    several; `replicates` are those of the bootstrap behind the intervals, at least 100, or 0 for no intervals. Raises
    InputError where there are no such runs.
    """
    from ... import analysis
    from ..documents import variability as words

    if replicates and replicates < LEAST_REPLICATES:
        raise InputError(f"replicates is 0 for no intervals, or at least {LEAST_REPLICATES}, not {replicates}")
    read, runs, notes = _compared(store, cluster, workload)
    rows = analysis.variability(
        runs,
        replicates=replicates,
        seed=analysis.SEED if seed is None else seed,
        progress=progress,
        imported=analysis.imported(read),
    )
    document = {"schema": "whorl.variability/1", "seed": rows[0].seed, "replicates": rows[0].replicates}
    return Reply(
        rows,
        lambda rows: document | {"rows": [row.as_dict() for row in rows], "notes": notes},
        lambda rows: words.variability(rows, gpu_names(read)),
        notes=notes,
    )


def across(
    store: Store | str | Path, *, cluster: str | Sequence[str] = (), workload: str | Sequence[str] = ()
) -> Reply[Sequence[Across]]:
    """Say whether the same GPUs are slow in several workloads, as `whorl verdicts variability --across` does.

    `frame` has a row for each pair of figures, with the rank correlation. Raises InputError where there are no such
    runs.
    """
    from ... import analysis
    from ..documents import variability as words

    read, runs, notes = _compared(store, cluster, workload)
    pairs = analysis.across(runs, identities=analysis.identities(read))
    notes += [] if pairs else ["no cluster has two workloads, so there is nothing to compare"]
    return Reply(
        pairs,
        lambda pairs: {"schema": "whorl.across/1", "rows": [pair.as_dict() for pair in pairs]},
        words.across,
        rows=RowList(of=analysis.Across),
        notes=notes,
    )


def gpu_names(store: Store | str | Path) -> dict[tuple[str, str], str]:
    """The GPU's name for people, by cluster and GPU."""
    rows = opened(store).sql("select cluster, gpu, name from gpus_now").to_pylist()
    return {(row["cluster"], row["gpu"]): row["name"] for row in rows}


def _compared(
    store: Store | str | Path, cluster: str | Sequence[str], workload: str | Sequence[str]
) -> tuple[Store, Any, list[str]]:
    """The store, the runs that are compared, and what is to know about them. InputError where there are none."""
    from ... import analysis
    from ...analysis.placement import available
    from ...analysis.runs.probing import has_rows, no_runs
    from ...store.names import find_workload, plain_workload

    read = opened(store)
    clusters, workloads = ([names] if isinstance(names, str) else list(names) for names in (cluster, workload))
    if workloads:
        measured = {name for _, full in available(read) for name in (full, plain_workload(full))}
        workloads = [find_workload(name, measured) for name in workloads]
    runs = analysis.measurements(read, clusters=clusters, workloads=workloads)
    if runs.is_empty():
        chosen = [f"cluster {name}" for name in clusters] + [f"workload {name}" for name in workloads]
        which = f"of {' and '.join(chosen)} " if chosen else ""
        has = "; ".join(f"{full} on {name}" for name, full in available(read))
        if not has or not has_rows(read, "runs"):
            raise no_runs(read)
        raise InputError(f"{read.root} holds no runs {which}to compare; it has {has}")
    notes = analysis.mixed_conditions(read, clusters=clusters, workloads=workloads)
    return read, runs, notes + analysis.untrusted(read, clusters=clusters, workloads=workloads)
