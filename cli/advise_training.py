"""`whorl advise burst` and `whorl advise spb`: how a training job should use its GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import OptionKey, json_option, options, settings, store_option

_scope = options(
    click.option("--workload", metavar="NAME", help="Whose scores are used.  [default: the store's only one]"),
    click.option("--cluster", metavar="NAME", help="The cluster, if several have the workload."),
    click.option("--hosts", metavar="HOSTLIST", help="Only GPUs of these nodes, as n[01-02]."),
)
_draws = (
    OptionKey("replicates", click.IntRange(20, 100_000), "Draws behind the intervals.", 400),
    OptionKey("seed", click.IntRange(0), "Seed of the draws.", 2022),
)
_file = click.Path(dir_okay=False, path_type=Path)


@click.command("burst", short_help="DeepPool: on how many GPUs each layer trains.")
@click.option("--profile", type=_file, required=True, help="CSV of layer times: plain, or .gz.")
@click.option("--network", type=_file, required=True, help="JSON of the chain of layers.")
@click.option("--model", metavar="NAME", help="The profile's model.  [default: its only one]")
@click.option("--batch", metavar="N,...", default="32", show_default=True, help="Samples in an iteration.")
@click.option("--gpus", metavar="N,...", default="8", show_default=True, help="GPUs at most: powers of two.")
@click.option(
    "--limit",
    metavar="X,...",
    default="2",
    show_default=True,
    help="GPU time at most, as a multiple of one GPU's; or data-parallel.",
)
@click.option("--store", metavar="DIR", help="A store: name the GPUs, by their scores.")
@_scope
@settings(
    OptionKey(
        "rules",
        click.Choice(["exact", "published"]),
        "exact: the fastest plan within the limit. published: as DeepPool's planner.",
        "exact",
    ),
    OptionKey(
        "conv-traffic",
        click.Choice(["right", "published"]),
        "How gradients of convolutions count.  [default: as the rules]",
    ),
    OptionKey("bandwidth", click.FloatRange(0, min_open=True), "Bytes per us between GPUs.  [default: 2.66e5]"),
    *_draws,
)
@json_option
def burst(profile: Path, network: Path, as_json: bool, **chosen: Any) -> None:
    """Plan a burst-parallel job: on how many GPUs each layer trains, the time, and which share of the GPUs is idle.

    \b
    whorl advise burst --profile layer_times.csv --network vgg16.json
      --model vgg16 --batch 32 --gpus 8,16 --limit 2 --store S

    --batch, --gpus and --limit take several values, with commas. docs/advise.md has the method.
    """
    from ..dashboards.answers.training import advise_burst
    from .output import print_reply

    print_reply(advise_burst(profile, network, **chosen), as_json=as_json)


@click.command("spb", short_help="JigSaw: how deep each GPU goes back.")
@store_option
@click.option("--gpus", type=click.IntRange(1), help="How many GPUs the job has: the best.  [default: all of --hosts]")
@click.option(
    "--backward",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="The share of a step that is backward.  [default: 2/3]",
)
@_scope
@settings(
    OptionKey("layers", click.IntRange(1, 1_000_000), "Layers of the network: depths in layers, traffic of each."),
    *_draws,
)
@json_option
def spb(store: str, as_json: bool, **chosen: Any) -> None:
    """Say how deep each GPU of a job goes back under structured partial backpropagation, and what that gains.

    \b
    whorl advise spb --store S --hosts n[01-02] --backward 0.67

    The deepest share is on the fastest GPU. docs/advise.md has the method.
    """
    from ..dashboards.answers.training import advise_spb
    from .output import print_reply

    print_reply(advise_spb(store, **chosen), as_json=as_json)
