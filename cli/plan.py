"""`whorl plan`: which GPUs to probe next, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from .options import Span, cluster_option, json_option, store_option, suite_option

if TYPE_CHECKING:
    from ..analysis.verdicts.answers.planning import Planned
    from ..dashboards.table import Table
    from ..jobs.planning import Command

_LISTED, _COMMANDS = 20, 10


@click.command("plan", short_help="Which GPUs to probe next, in the time that there is.")
@store_option
@click.option("--budget", type=Span(), default="2h", show_default=True, help="GPU time that there is: 30min, 2h.")
@click.option(
    "--probe",
    "probes",
    multiple=True,
    metavar="NAME",
    help="Which probe. Repeatable.  [default: gemm-fp32, stream-triad]",
)
@suite_option("How thoroughly.")
@click.option(
    "--threshold",
    type=click.FloatRange(0, 100, min_open=True),
    default=3.0,
    show_default=True,
    metavar="PERCENT",
    help="Slower by this much matters.",
)
@cluster_option
@json_option
def plan(
    store: str,
    budget: float,
    probes: tuple[str, ...],
    suite: str,
    threshold: float,
    cluster: str | None,
    as_json: bool,
) -> None:
    """Say which GPUs to probe next: suspected ones, those found faulty long ago, then where a probe tells most.

    \b
    whorl plan --store S --budget 2h

    A GPU leaves the list when it is decided, with at most 1 in 1,000 GPUs called slow by mistake. Run the commands on
    the nodes that they name.
    """
    from ..jobs.planning import PROBES, commands
    from ..jobs.planning import plan as planned
    from .output import print_json, show

    found = planned(store, budget=budget, probes=probes or PROBES, suite=suite, cluster=cluster, threshold=threshold)
    todo = list(commands(found, store, suite))
    if as_json:
        said = [{"node": one.node, "command": str(one), "seconds": one.seconds} for one in todo]
        print_json(found.as_dict() | {"commands": said})
        return
    show(_answer(found, todo, threshold))


def _answer(found: Planned, todo: Sequence[Command], threshold: float) -> Iterable[str | Table]:
    from ..dashboards.table import MISSING, Line, Table, count, many, number
    from ..dashboards.verdict_words import short

    spent = sum(one.seconds for one in found.gpus)
    yield f"cluster {found.cluster}: {many(len(found.gpus), 'GPU')} to probe, {spent / 60:.0f} min of GPU time"
    names = short(one.name for one in found.gpus)
    rows = [
        [
            names[one.name],
            one.reason,
            number(one.bits, 2),
            f"{100 * one.slow_chance:.1f}",
            count(one.sittings),
            MISSING if one.last is None else f"{one.last:%Y-%m-%d}",
        ]
        for one in found.gpus[:_LISTED]
    ]
    if rows:
        yield Table(("GPU", "why", "bits", "slow %", "sittings", "last"), rows, (2, 3, 4), wrapped=(1,), leaves=(4, 2))
        if len(found.gpus) > _LISTED:
            yield f"and {len(found.gpus) - _LISTED:,} more: --json has all"
        yield (
            f"bits: how much a probe is expected to tell; slow %: chance that the GPU is more than {threshold:g} % "
            "slower than its peers"
        )
    yield ""
    for word, n in found.decided.items():
        yield f"decided, {word}: {many(n, 'GPU')}; no probe is needed now"
    if found.left_out:
        yield f"worth a probe, beyond the budget: {many(found.left_out, 'GPU')}"
    if found.passive:
        yield found.passive
    yield from found.notes
    for one in todo[:_COMMANDS]:
        yield Line(f"# on {one.node or 'its node, which the store does not know'}:")
        yield Line(one.brief(names))
    if len(todo) > _COMMANDS:
        yield f"and {many(len(todo) - _COMMANDS, 'command')} more: --json has all"
