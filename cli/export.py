"""`whorl export`: newest readings and findings for monitoring systems."""

from __future__ import annotations

import time

import click

from .options import Span, store_option

_LOOK_S = 0.2  # a signal ends the command within this time


@click.group("export", short_help="Newest readings and findings for Prometheus and OpenTelemetry.")
def export() -> None:
    """Give the newest reading of every GPU of a store, and what whorl found, to a monitoring system.

    docs/export.md explains the series.
    """


@export.command("prometheus", short_help="A page that Prometheus reads.")
@store_option
@click.option(
    "--listen",
    metavar="ADDR:PORT",
    default="127.0.0.1:9500",
    show_default=True,
    help="Where the page is; :9500 is every address.",
)
@click.option(
    "--max-age",
    type=Span(),
    default="60s",
    show_default=True,
    help="Leave out readings that are older. Longer than --slow-interval of the collectors.",
)
@click.option(
    "--dcgm-names", is_flag=True, help="Also give the readings under dcgm-exporter's names, as DCGM_FI_DEV_GPU_TEMP."
)
@click.option("--once", is_flag=True, help="Print the page and end, as for a file of node_exporter.")
def prometheus(store: str, listen: str, max_age: float, dcgm_names: bool, once: bool) -> None:
    """Serve a page of metrics for Prometheus until you stop it: Ctrl-C, SIGTERM.

    \b
    whorl export prometheus --store S                    http://127.0.0.1:9500/metrics
    whorl export prometheus --store S --listen :9500     for a Prometheus elsewhere
    whorl export prometheus --store S --once

    Names and units follow Prometheus: whorl_gpu_power_watts, whorl_gpu_energy_joules_total. A GPU that is not read any
    more vanishes after --max-age. Findings are those that `whorl verdicts` and `whorl fingerprint` stored last.
    """
    from ..dashboards.exported.exporting import Exporter, Settings
    from ..dashboards.exported.prometheus import page
    from ..dashboards.exported.serving import Server, address
    from ..store import Store
    from ..store.system.signals import Noted

    host, port = address(listen)
    exporter = Exporter(Store.open(store), Settings(max_age, dcgm_names))
    if once:
        exporter.refresh()
        click.echo(page(exporter.series()), nl=False)
        return
    server = Server(host, port, lambda: page(exporter.series()))
    with Noted() as signals:
        exporter.start()
        server.start()
        click.echo(f"whorl: Prometheus finds the metrics of {store} at {server.url}", err=True)
        while not signals.came:
            time.sleep(_LOOK_S)
        server.close()
        exporter.close()
