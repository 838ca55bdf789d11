"""How a training job should use its GPUs: the functions of `whorl advise burst`, `spb` and `power-plan`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ...errors import InputError
from .reply import Reply, RowList, folder, opened

if TYPE_CHECKING:
    from ...analysis.power_classes.job_plans import SyncJobPlan
    from ...analysis.training.burst import BurstAnswer
    from ...analysis.training.gang import SpbPlan
    from ...store import Store

DATA_PARALLEL = "data-parallel"


class ScopeOptions(TypedDict, total=False):
    """Which GPUs and runs of a store are meant."""

    workload: str | None
    """Whose scores are used; None: the store's only one."""
    cluster: str | None
    hosts: str | None
    """A host list; None: all nodes."""
    replicates: int
    """Draws behind the intervals."""
    seed: int


class BurstOptions(ScopeOptions, total=False):
    """The options of `whorl advise burst`, with the same defaults."""

    batch: int | str | Sequence[int]
    gpus: int | str | Sequence[int]
    limit: float | str | Sequence[float | str]
    rules: str
    conv_traffic: str | None
    bandwidth: float | None


def advise_burst(
    profile: str | Path,
    network: str | Path,
    *,
    model: str | None = None,
    store: Store | str | Path | None = None,
    **options: Unpack[BurstOptions],
) -> Reply[BurstAnswer]:
    """Plan on how many GPUs each layer of a network trains, as `whorl advise burst` does.

    `profile`: the CSV file of layer times, and `network`: the JSON file of the chain of layers. `batch`, `gpus` and
    `limit` may be several, and `frame` has a row for each combination. A limit is a number, at least 1, or
    "data-parallel". With a store each plan also names its GPUs. Raises InputError, which names the file and the line,
    and StoreError.
    """
    from ...analysis.training.burst import BANDWIDTH, BurstQuestion, burst_answer, read_network, read_profile
    from ...analysis.training.gang import Scope, gang_of
    from ..documents import training as documents

    scoped: dict[str, Any] = dict(options)
    batches = _whole_numbers(scoped.pop("batch", 32), "batch")
    widths = _whole_numbers(scoped.pop("gpus", 8), "gpus")
    limits = _limits(scoped.pop("limit", 2.0))
    rules, traffic = scoped.pop("rules", "exact"), scoped.pop("conv_traffic", None)
    bandwidth = scoped.pop("bandwidth", None) or BANDWIDTH
    questions = [
        BurstQuestion(batch, gpus, limit, rules, traffic, bandwidth)
        for batch, gpus, limit in product(batches, widths, limits)
    ]
    scope = Scope(**scoped)
    if store is None and (scope.workload or scope.cluster or scope.hosts):
        raise InputError("scores are those of a store: give --store with --workload, --cluster or --hosts")
    gang = None if store is None else gang_of(opened(store), scope)
    answer = burst_answer(read_network(network), read_profile(profile, model), questions, gang)
    notes = (*documents.burst_notes(answer), *(gang.notes if gang else ()))
    return Reply(answer, documents.burst_mapping, documents.burst_document, notes=notes)


def _several(values: float | str | Sequence[float | str]) -> list[str]:
    """Values of an option as texts: one, a text with commas, or a list."""
    listed = values if isinstance(values, Sequence) and not isinstance(values, str) else str(values).split(",")
    return [str(value).strip() for value in listed]


def _whole_numbers(values: float | str | Sequence[float | str], option: str) -> list[int]:
    texts = _several(values)
    wrong = [text for text in texts if not re.fullmatch(r"[0-9]{1,9}", text)]
    if wrong or not texts:
        raise InputError(f"--{option} {','.join(texts)!r}: write whole numbers with commas between them, such as 8,16")
    return [int(text) for text in texts]


def _limits(values: float | str | Sequence[float | str]) -> list[float | None]:
    """Limits on GPU time; None for data parallelism."""
    try:
        return [None if text == DATA_PARALLEL else float(text) for text in _several(values)]
    except ValueError as error:
        raise InputError(
            f"--limit {values!r}: write numbers of at least 1, such as 1.5,2, or {DATA_PARALLEL}"
        ) from error


def advise_spb(
    store: Store | str | Path,
    *,
    gpus: int | None = None,
    backward: float | None = None,
    layers: int | None = None,
    **scope: Unpack[ScopeOptions],
) -> Reply[SpbPlan]:
    """Say how deep each GPU goes back under structured partial backpropagation, as `whorl advise spb` does.

    The job has all GPUs on `hosts`, a host list, or the best `gpus`. `frame` has a row for each GPU, the deepest first.
    Raises InputError, and StoreError where there is no store.
    """
    from ...analysis.training.gang import BACKWARD, Scope, SpbWorker, plan_spb
    from ..documents import training as documents

    share = BACKWARD if backward is None else backward
    plan = plan_spb(opened(store), Scope(**scope), gpus=gpus, backward=share, layers=layers)
    return Reply(plan, documents.spb_mapping, documents.spb_document, rows=RowList(of=SpbWorker), notes=plan.notes)


def advise_power_plan(
    store: Store | str | Path,
    *,
    hosts: str,
    workload: str,
    budget: float | str | None = None,
    limit: float | None = None,
    cluster: str | None = None,
) -> Reply[SyncJobPlan]:
    """Plan power limits for a job whose steps wait for its slowest GPU, as `whorl advise power-plan` does.

    The job has all GPUs on `hosts`, a host list. `budget`: what they may report together, W or a text as "4.2kW"; None:
    as fast as the slowest GPU is. `limit`: the present limit, W; None: that of each GPU in the store. `frame` has a row
    for each GPU. Where a plan would not pay, `refused` of the document says why. Raises InputError where runs are
    missing, with how to measure them, and StoreError where there is no store.
    """
    from ...analysis.power_classes.job_plans import PlanScope, job_plan
    from ...probes.catalogue import PROBES
    from ..documents import training as documents

    command = f"whorl probe run {workload} --store {folder(store)} --suite full --neighbours busy"
    budget_w = None if budget is None else _watts(str(budget))
    scope = PlanScope(hosts, workload, command if workload in PROBES else None, cluster, limit, budget_w)
    plan = job_plan(opened(store), scope)
    notes = tuple(documents.power_plan_notes(plan))
    return Reply(plan, documents.power_plan_mapping, documents.power_plan_document, notes=notes)


def _watts(text: str) -> float:
    """Watts of a text such as 4.2kW, 4200W or 4200."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(kW|W)?\s*", text, re.IGNORECASE)
    watts = float(match[1]) * (1000 if (match[2] or "").lower() == "kw" else 1) if match else 0.0
    if not watts > 0:
        raise InputError(f"--budget {text!r} is no power: write it as 4.2kW or 4200W")
    return watts
