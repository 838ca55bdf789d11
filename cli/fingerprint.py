"""`whorl fingerprint`: what each GPU is, figure by figure, beside its peers."""

from __future__ import annotations

from typing import Any

import click

from .engine_options import engine_of, place_options
from .options import cluster_option, json_option, store_option


@click.command("fingerprint", short_help="The figures of each GPU, beside those of its peers.")
@store_option
@cluster_option
@click.option("--gpu", metavar="NAME", help="All figures of this GPU: node/slot, UUID, serial or a part.")
@place_options
@json_option
def fingerprint(store: str, cluster: str | None, gpu: str | None, as_json: bool, **place: Any) -> None:
    """Compute the fingerprints of a cluster's GPUs, store them beside the earlier ones, and show them.

    \b
    whorl fingerprint --store S                   the classes, GPU by GPU
    whorl fingerprint --store S --gpu c001-4/3    every figure of one GPU

    Every figure has the 95 % interval of another sitting. docs/verdicts.md explains the figures.
    """
    from ..dashboards.answers.judging import fingerprint as computed
    from .output import ProgressBar, print_reply

    with engine_of(place, store) as engine, ProgressBar() as progress:
        progress.say("computing the fingerprints")
        reply = computed(store, cluster=cluster, gpu=gpu, engine=engine, progress=progress.say)
    print_reply(reply, as_json=as_json)
