"""`whorl energy quote`: a job on other GPUs, under power caps, at another hour; and a workload before it has run."""

from __future__ import annotations

from typing import Any

import click

from .energy_options import joined, shared
from .options import Share, Span, csv_option, exclusive, json_option


@click.command("quote", short_help="A job on other GPUs, under power caps, at another hour.")
@shared
@click.option("--job", metavar="JOBID", help="A job that has run.")
@click.option("--workload", metavar="NAME", help="Instead: a workload, before any job has run.")
@click.option("--gpus", metavar="N|NAMES", help="Of --workload: how many GPUs, or which: n1/0,n1/1.  [default: 1]")
@click.option(
    "--time", type=Span(), help="Of --workload: as much work as takes this at the default limit.  [default: 1h]"
)
@click.option("--model", metavar="NAME", help="Of --workload: on this model of GPU, where it ran on several.")
@click.option("--cap", type=Share(), help="Only this power cap, as 60% of the limit.  [default: 90% to 50%]")
@click.option(
    "--deadline", type=Span(), default="24h", show_default=True, help="It must end within this time from now."
)
@json_option
@csv_option
@click.pass_obj
def quote(
    inherited: dict[str, Any] | None, /, job: str | None, deadline: float, as_json: bool, as_csv: bool, **given: Any
) -> None:
    """Say what a job would have taken elsewhere: time, joules, grams and money, with intervals.

    \b
    usual GPU  median GPU of its model    needs `whorl campaign`
    model      each other model           needs the same workloads on both
    cap        lower power limits         needs `whorl tune` of its workload
    start      greenest before deadline   needs hours of a grid (docs/carbon.md)

    \b
    whorl energy quote --store S --workload gemm-fp16 --gpus 8 --cap 60%

    says what a workload takes before it has run, from its runs at the default limit and under caps.

    An option without such data is n/a, with the reason. "best": no other option is as good in time, energy and grams.
    """
    from ..dashboards.answers.energy import energy_quote
    from .output import ProgressBar, print_reply

    exclusive("as_json", "as_csv")({"as_json": as_json, "as_csv": as_csv})
    options = joined(inherited, given)
    options |= {name: given[name] for name in ("workload", "time", "model", "cap")}
    if (gpus := given["gpus"]) is not None:
        options["gpus"] = int(gpus) if gpus.isdecimal() else gpus.split(",")
    with ProgressBar() as progress:
        reply = energy_quote(options.pop("store"), job, deadline=deadline, **options, progress=progress.say)
    print_reply(reply, as_json=as_json, as_csv=as_csv)
