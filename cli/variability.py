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
    help="Bootstrap replicates for the intervals; 0 for no intervals.",
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
    from .. import analysis
    from ..analysis.placement import available
    from ..dashboards.printed import variability as printed
    from ..errors import InputError
    from ..store import Store
    from ..store.names import find_workload, plain_workload
    from .output import Progress, print_json, show

    exclusive("as_json", "as_markdown")({"as_json": as_json, "as_markdown": as_markdown})
    opened = Store.open(store)
    if workloads:
        there = {name for _, workload in available(opened) for name in (workload, plain_workload(workload))}
        workloads = tuple(find_workload(name, there) for name in workloads)
    runs = analysis.measurements(opened, clusters=clusters, workloads=workloads)
    if runs.is_empty():
        named = [f"cluster {name}" for name in clusters] + [f"workload {name}" for name in workloads]
        what = f"of {' and '.join(named)} " if named else ""
        known = available(opened)
        has = "; ".join(f"{workload} on {cluster}" for cluster, workload in known)
        more = f"`whorl import --store {store} FILES` or `whorl probe run --store {store}` adds some"
        hint = f"it has {has}" if has else more
        raise InputError(f"{store} holds no runs {what}to compare; {hint}")
    notes = analysis.mixed_conditions(opened, clusters=clusters, workloads=workloads)
    notes += analysis.untrusted(opened, clusters=clusters, workloads=workloads)
    for sentence in notes:
        click.echo(f"whorl: note: {sentence}", err=True)
    if across:
        pairs = analysis.across(runs, identities=analysis.identities(opened))
        if as_json:
            print_json({"schema": "whorl.across/1", "rows": [pair.as_dict() for pair in pairs]})
        elif not pairs:
            click.echo("no cluster has two workloads, so there is nothing to compare", err=True)
        elif as_markdown:
            click.echo("\n\n".join(f"## {table.title}\n\n{table.markdown()}" for table in printed.across_answer(pairs)))
        else:
            show(printed.across_answer(pairs))
        return
    with Progress() as progress:
        rows = analysis.variability(
            runs,
            replicates=replicates,
            seed=analysis.SEED if seed is None else seed,
            progress=lambda what, done, wanted: progress(done, wanted, f"replicates of {what}"),
            imported=analysis.imported(opened),
        )
    outliers = any(row.slow or row.fast for row in rows)
    listed = [] if as_json or not outliers else opened.sql("select cluster, gpu, name from gpus_now").to_pylist()
    names = {(one["cluster"], one["gpu"]): one["name"] for one in listed}
    if as_json:
        print_json(
            {
                "schema": "whorl.variability/1",
                "seed": rows[0].seed,
                "replicates": rows[0].replicates,
                "rows": [row.as_dict() for row in rows],
                "notes": notes,
            }
        )
    elif as_markdown:
        click.echo(printed.as_markdown(rows, names))
    else:
        show(printed.answer(rows, names))
