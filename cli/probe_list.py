"""`whorl probe list`: what each probe stresses, its work, its time, what it needs."""

from __future__ import annotations

import click

from ..dashboards.documents import probes as documents
from .options import OptionKey, any_store_option, backend_option, json_option
from .output import print_document, print_json


@click.command("list", short_help="List the probes: what they stress, their work, their time.")
@backend_option(
    "cuda",
    "simulated",
    says="Whose sizes; cuda: of the GPU here, else of a simulated V100.",
    simulated=(OptionKey("model", click.STRING, "V100, A100, H100 or H200.  [default: V100]", metavar="NAME"),),
)
@any_store_option
@click.option("--keep-rule", is_flag=True, help="Of the runs in the store: which probes add a column of their own.")
@json_option
def list_probes(backend: str | None, model: str | None, store: str | None, keep_rule: bool, as_json: bool) -> None:
    """List the probes of each suite: what each one stresses, its work, its time, and what it needs.

    A larger suite also runs the probes of the smaller ones. The size is that of one repetition, on the first GPU here
    or of a simulated model. The time is the longest that a probe takes on a warm GPU, without its preparation.

    --keep-rule asks the runs of --store instead: a probe stays if its ICC over sittings is at least 0.5, and if the
    probes before it leave more than 30 % of its variance between GPUs unexplained.
    """
    if keep_rule:
        _print_keep_rule(store, as_json=as_json)
        return
    from ..probes.listing import listing
    from ..probes.probe import SUITES

    name, rows = listing(model or ("V100" if backend == "simulated" else None))
    if as_json:
        print_json({"schema": "whorl.probe.list/1", "model": name, "probes": rows})
    else:
        print_document(documents.list_document(name, rows, SUITES))


def _print_keep_rule(store: str | None, *, as_json: bool) -> None:
    """Which probes add a column of their own, by the runs of a store."""
    from ..analysis.spread.keep_rule import LEAST_ICC, LEAST_UNEXPLAINED, MORE_GPUS, keep_rule
    from ..probes.catalogue import PROBES
    from ..store import Store

    rows = keep_rule(Store.open(store), list(PROBES)) if store else []
    if as_json:
        print_json({"schema": "whorl.probe.keep-rule/1", "probes": [row.as_dict() for row in rows]})
        return
    limits = (LEAST_ICC, LEAST_UNEXPLAINED, MORE_GPUS)
    print_document(documents.keep_document(rows, limits, has_store=store is not None))
