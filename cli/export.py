"""`whorl export`: newest readings and findings for monitoring systems."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from .options import Span, store_option

if TYPE_CHECKING:
    from ..dashboards.exported.exporter import Exporter

_LOOK_S = 0.2  # a signal ends the command within this time
_SHORTEST_S = 1.0


@click.group("export", short_help="Newest readings and findings for Prometheus and OpenTelemetry.")
def export() -> None:
    """Give the newest reading of every GPU of a store, and what whorl found, to a monitoring system.

    \b
    whorl export prometheus --store S
    whorl export otlp --store S --endpoint http://127.0.0.1:4318

    docs/dashboard.md explains the series.
    """


def _check(seconds: float, option: str) -> None:
    from ..errors import InputError

    if seconds < _SHORTEST_S:
        raise InputError(f"{option} {seconds:g} s is too short: give {_SHORTEST_S:g} s or more")


def _say_if_idle(exporter: Exporter, max_age: float) -> None:
    from .output import tell

    if not exporter.reads():
        tell(
            f"note: no GPU of this store was read in the last {max_age:g} s, so readings are missing: run whorl collect"
        )


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
    help="Leave out older readings; longer than slow-interval.",
)
@click.option(
    "--dcgm-names", is_flag=True, help="Also give the readings under dcgm-exporter's names, as DCGM_FI_DEV_GPU_TEMP."
)
@click.option("--once", is_flag=True, help="Print the page and end, as for a file of node_exporter.")
def prometheus(store: str, listen: str, max_age: float, dcgm_names: bool, once: bool) -> None:
    """Serve a page of metrics for Prometheus until you stop it: Ctrl-C, SIGTERM.

    \b
    whorl export prometheus --store S                  at 127.0.0.1:9500/metrics
    whorl export prometheus --store S --listen :9500   for a Prometheus elsewhere
    whorl export prometheus --store S --once

    Names and units follow Prometheus: whorl_gpu_power_watts, whorl_gpu_energy_joules_total. A GPU that is not read any
    more vanishes after --max-age. Findings are those that `whorl verdicts` and `whorl verdicts fingerprint` stored.
    """
    from ..dashboards.exported.exporter import LIMITS, PATH, Exporter, Settings, application, page
    from ..dashboards.serving import Server, address
    from ..store import Store
    from ..store.system.signals import Noted
    from .output import tell

    host, port = address(listen)
    _check(max_age, "--max-age")
    exporter = Exporter(Store.open(store), Settings(max_age, dcgm_names))
    if once:
        exporter.refresh()
        _say_if_idle(exporter, max_age)
        click.echo(page(exporter.series()), nl=False)
        return
    server = Server(application(lambda: page(exporter.series())), host, port, LIMITS, path=PATH)
    with Noted() as signals:
        exporter.start()
        server.start()
        tell(f"Prometheus finds the metrics of {store} at {server.url}")
        _say_if_idle(exporter, max_age)
        while not signals.came:
            time.sleep(_LOOK_S)
        server.close()
        exporter.close()


@export.command("otlp", short_help="Send the same to a collector of OpenTelemetry.")
@store_option
@click.option("--endpoint", metavar="URL", required=True, help="The collector: http://HOST:4318, OTLP over HTTP.")
@click.option("--interval", type=Span(), default="60s", show_default=True, help="Time between two sendings.")
@click.option("--max-age", type=Span(), default="60s", show_default=True, help="Leave out older readings.")
@click.option("--once", is_flag=True, help="Send what is known and end.")
def otlp(store: str, endpoint: str, interval: float, max_age: float, once: bool) -> None:
    """Send the newest readings and findings to a collector until you stop it: Ctrl-C, SIGTERM.

    \b
    whorl export otlp --store S --endpoint http://127.0.0.1:4318

    Names follow OpenTelemetry's conventions for hardware: hw.power, hw.energy, hw.gpu.utilization; others are
    whorl.gpu.*. Needs the packages of whorl's extra `otlp`. Headers for the collector, as a token, come from
    OTEL_EXPORTER_OTLP_HEADERS.
    """
    from ..dashboards.exported.exporter import Exporter, Settings
    from ..dashboards.exported.otlp import Sender
    from ..errors import WhorlError
    from ..store import Store
    from ..store.system.signals import Noted
    from .output import tell

    _check(max_age, "--max-age")
    _check(interval, "--interval")
    exporter = Exporter(Store.open(store), Settings(max_age))
    sender = Sender(exporter, endpoint, timeout_s=min(10.0, interval), now_ns=time.time_ns())
    if once:
        exporter.refresh()
        _say_if_idle(exporter, max_age)
        tell(f"sent {sender.send():,} points to {sender.url}")
        return
    with Noted() as signals:
        exporter.start()
        tell(f"sending the metrics of {store} to {sender.url} every {interval:g} s")
        _say_if_idle(exporter, max_age)
        sentence, due = "", time.monotonic()
        while not signals.came:
            if time.monotonic() < due:
                time.sleep(min(_LOOK_S, interval))
                continue
            due = max(due + interval, time.monotonic())
            try:
                sender.send()
                if sentence:
                    tell("the metrics arrive again")
                sentence = ""
            except WhorlError as error:
                if str(error) != sentence:
                    sentence = str(error)
                    tell(f"{sentence}; it is tried again every {interval:g} s")
        sender.close()
        exporter.close()
