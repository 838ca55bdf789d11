"""How a training job should use its GPUs: the functions of `whorl advise burst` and `whorl advise spb`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError
from .reply import Reply, RowList, opened

if TYPE_CHECKING:
    from ...analysis.placement.burst import BurstAnswer
    from ...analysis.placement.spb import SpbPlan
    from ...store import Store

DATA_PARALLEL = "data-parallel"


def advise_burst(
    profile: str | Path,
    network: str | Path,
    *,
    model: str | None = None,
    batch: int | str | Sequence[int] = 32,
    gpus: int | str | Sequence[int] = 8,
    limit: float | str | Sequence[float | str] = 2.0,
    rules: str = "exact",
    conv_traffic: str | None = None,
    bandwidth: float | None = None,
    store: Store | str | Path | None = None,
    workload: str | None = None,
    cluster: str | None = None,
    hosts: str | None = None,
    replicates: int = 400,
    seed: int = 2022,
) -> Reply[BurstAnswer]:
    """Plan on how many GPUs each layer of a network trains, as `whorl advise burst` does.

    `profile`: the CSV file of layer times, and `network`: the JSON file of the chain of layers. `batch`, `gpus` and
    `limit` may be several, and `frame` has a row for each combination. A limit is a number, at least 1, or
    "data-parallel". With a store each plan also names its GPUs. Raises InputError, which names the file and the line,
    and StoreError.
    """
    from ...analysis.placement.burst import BANDWIDTH, BurstQuestion, burst_answer
    from ...analysis.placement.gang import Scope, gang_of
    from ...analysis.placement.layers import read_network, read_profile
    from ..printed import training as printed

    bytes_per_us = BANDWIDTH if bandwidth is None else bandwidth
    questions = [
        BurstQuestion(samples, width, most, rules, conv_traffic, bytes_per_us)
        for samples, width, most in product(_whole(batch, "batch"), _whole(gpus, "gpus"), _limits(limit))
    ]
    if store is None and (workload or cluster or hosts):
        raise InputError("scores are those of a store: give --store with --workload, --cluster or --hosts")
    gang = None if store is None else gang_of(opened(store), Scope(workload, cluster, hosts, replicates, seed))
    answer = burst_answer(read_network(network), read_profile(profile, model), questions, gang)
    return Reply(
        answer,
        partial(printed.burst_document, answer),
        partial(printed.burst_answer, answer),
        notes=(*printed.burst_notes(answer), *(gang.notes if gang else ())),
    )


def _several(values: float | str | Sequence[float | str]) -> list[str]:
    """Values of an option as texts: one, a text with commas, or a list."""
    listed = values if isinstance(values, Sequence) and not isinstance(values, str) else str(values).split(",")
    return [str(value).strip() for value in listed]


def _whole(values: float | str | Sequence[float | str], option: str) -> list[int]:
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
    hosts: str | None = None,
    gpus: int | None = None,
    workload: str | None = None,
    cluster: str | None = None,
    backward: float | None = None,
    layers: int | None = None,
    replicates: int = 400,
    seed: int = 2022,
) -> Reply[SpbPlan]:
    """Say how deep each GPU goes back under structured partial backpropagation, as `whorl advise spb` does.

    The job has all GPUs on `hosts`, a host list, or the best `gpus`. `frame` has a row for each GPU, the deepest first.
    Raises InputError, and StoreError where there is no store.
    """
    from ...analysis.placement.gang import Scope
    from ...analysis.placement.spb import BACKWARD, Worker, plan_spb
    from ..printed import training as printed

    scope = Scope(workload, cluster, hosts, replicates, seed)
    share = BACKWARD if backward is None else backward
    plan = plan_spb(opened(store), scope, gpus=gpus, backward=share, layers=layers)
    return Reply(
        plan,
        partial(printed.spb_document, plan),
        partial(printed.spb_answer, plan),
        rows=RowList(of=Worker),
        notes=plan.notes,
    )
