"""`whorl variability`: how much the GPUs of a fleet differ, which stand out, and whether it is real."""

from __future__ import annotations

import click

from .options import exclusive, json_option, store_option


@click.command("variability", short_help="How much the GPUs differ, and whether the difference repeats.")
@store_option
@click.option("--cluster", "clusters", multiple=True, metavar="NAME", help="Only this cluster. Repeatable.")
@click.option("--workload", "workloads", multiple=True, metavar="NAME", help="Only this workload. Repeatable.")
@click.option("--across", is_flag=True, help="Show the rank correlation between workloads, GPU by GPU.")
@click.option(
    "--replicates",
    type=click.IntRange(0, 100_000),
    default=1000,
    show_default=True,
    help="Bootstrap replicates for the intervals, at least 100; 0 for no intervals.",
)
@click.option("--seed", type=click.IntRange(0), help="Seed of the bootstrap.  [default: 2022]")
@json_option
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown.")
def variability(
    store: str,
    clusters: tuple[str, ...],
    workloads: tuple[str, ...],
    across: bool,
    replicates: int,
    seed: int | None,
    as_json: bool,
    as_markdown: bool,
) -> None:
    """Say how much the GPUs of a store differ, per cluster and workload.

    Level "run" counts every run, level "gpu" the median of each GPU's runs. fence % is 400 IQR/median, the
    definition of the SC'22 study. docs/statistics.md defines every figure.
    """
    from ..dashboards.answers import judging
    from ..dashboards.printed import variability as printed
    from .output import ProgressBar, print_reply, tell_notes

    exclusive("as_json", "as_markdown")({"as_json": as_json, "as_markdown": as_markdown})
    chosen = {"cluster": clusters, "workload": workloads}
    if across:
        pairs = judging.across(store, **chosen)
        if not as_markdown:
            print_reply(pairs, as_json=as_json)
            return
        tell_notes(pairs)
        click.echo("\n\n".join(f"## {one.title}\n\n{one.markdown()}" for one in printed.across_answer(pairs.result)))
        return
    with ProgressBar() as progress:
        reply = judging.variability(
            store,
            **chosen,
            replicates=replicates,
            seed=seed,
            progress=lambda workload, done, wanted: progress(done, wanted, f"replicates of {workload}"),
        )
    if as_markdown:
        tell_notes(reply)
        click.echo(printed.as_markdown(reply.result, judging.gpu_names(store)))
    else:
        print_reply(reply, as_json=as_json)
