"""`whorl advise power-plan`: a power limit for each GPU of a job whose steps wait for the slowest."""

from __future__ import annotations

from typing import Any

import click

from .options import json_option, store_option


@click.command("power-plan", short_help="Power limits for a job that waits for its slowest GPU.")
@store_option
@click.option("--hosts", metavar="HOSTLIST", required=True, help="The job has all GPUs of these nodes, as n[01-02].")
@click.option("--workload", metavar="NAME", required=True, help="Whose runs say how fast the GPUs are.")
@click.option("--budget", metavar="POWER", help="The GPUs may report this together: 4.2kW or 4200W.")
@click.option(
    "--limit",
    type=click.FloatRange(0, min_open=True),
    metavar="W",
    help="The present limit.  [default: that of each GPU in the store]",
)
@click.option("--cluster", metavar="NAME", help="The cluster, if several have such hosts.")
@json_option
def power_plan(store: str, as_json: bool, **chosen: Any) -> None:
    """Set limits so that no GPU of a synchronous job runs faster than the slowest, which all wait for.

    \b
    whorl advise power-plan --store S --hosts n[12-13] --workload gemm-fp32
    whorl advise power-plan ... --budget 4.2kW   # the fastest within a power

    It needs a run of each GPU at its present limit, and three GPUs of the model under several limits; it says how to
    measure what is missing. It prints `nvidia-smi` lines and runs none. Jobs that do not wait for each other gain
    nothing by limits of their own (0.00 to 0.04 %). docs/tune.md has the method.
    """
    from ..dashboards.answers.training import advise_power_plan
    from .output import print_reply

    print_reply(advise_power_plan(store, **chosen), as_json=as_json)
