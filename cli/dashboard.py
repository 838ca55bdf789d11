"""`whorl dashboard`: pages over a store in a browser."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import webbrowser
from contextlib import ExitStack
from pathlib import Path

import click

_LOOK_S = 0.2  # a signal ends the command within this time


@click.command("dashboard", short_help="Look at a store in a browser: the fleet, its odd GPUs, and why.")
@click.option(
    "--store", metavar="DIR", envvar="WHORL_STORE", show_envvar=True, help="The store. Not needed with --demo."
)
@click.option("--demo", is_flag=True, help="Measure a simulated fleet of 64 GPUs first, and show that.")
@click.option(
    "--listen",
    metavar="ADDR:PORT",
    default="127.0.0.1:8050",
    show_default=True,
    help="Where the pages are; :8050 is every address.",
)
@click.option(
    "--token-file", metavar="FILE", type=click.Path(path_type=Path), help="Ask for the token in this file, mode 600."
)
@click.option("--prefix", metavar="/PATH/", default="/", show_default=True, help="Where a proxy shows the pages.")
@click.option(
    "--sql-seconds",
    type=click.FloatRange(1, 3600),
    default=30.0,
    show_default=True,
    help="Stop a query of the page SQL after this time.",
)
@click.option(
    "--sql-memory",
    metavar="MB",
    type=click.IntRange(100),
    default=1000,
    show_default=True,
    help="Memory that a query of the page SQL may use.",
)
@click.option("--no-open", is_flag=True, help="Start no browser.")
def dashboard(
    store: str | None,
    demo: bool,
    listen: str,
    token_file: Path | None,
    prefix: str,
    sql_seconds: float,
    sql_memory: int,
    no_open: bool,
) -> None:
    """Show a store in a browser until you stop it: Ctrl-C, SIGTERM. It changes nothing in the store.

    \b
    whorl dashboard --store S                         http://127.0.0.1:8050
    whorl dashboard --demo                            a simulated fleet
    whorl dashboard --store S --listen :8050 --token-file t    for others too

    Addresses that other machines reach need a token: one word of 16 characters or more, in a file that only you can
    read. The pages ask for it once. Needs the packages of whorl's extra `dashboard`. docs/dashboard.md explains more.
    """
    from ..dashboards.app.serving import Server, check_prefix, read_token, refuse_open
    from ..dashboards.listening import address
    from ..store.system.signals import Noted
    from .output import tell

    if demo == (store is not None) and not (demo and os.environ.get("WHORL_STORE") == store):
        raise click.UsageError("give --store, or --demo for a simulated fleet")
    host, port = address(listen, "127.0.0.1:8050")
    token = None if token_file is None else read_token(token_file)
    refuse_open(host, token)
    where = check_prefix(prefix)
    with ExitStack() as ends:
        if demo:
            store = _measured(ends.enter_context(tempfile.TemporaryDirectory(prefix="whorl-demo-")))
        assert store is not None
        from ..dashboards.app.first import begin
        from ..store import Store

        opened = Store.open(store)
        reading = begin(opened)  # before what takes long to load
        from ..dashboards.app.make import make_app
        from ..store.console import Limits
        from .advising import Advisor

        reading.limits, reading.advise = Limits(sql_seconds, sql_memory), Advisor()
        app = make_app(reading, prefix=where, token=token, ahead=True)
        server = Server(app.server, host, port, where)
        with Noted() as signals:
            server.start()
            tell(f"the dashboard of {store} is at {server.url}; end it with Ctrl-C")
            if not no_open and _has_browser():
                webbrowser.open(server.url)
            while not signals.came:
                time.sleep(_LOOK_S)
            server.close()
        opened.close()


def _measured(folder: str) -> str:
    """A store with a simulated fleet, and what was found about it."""
    from ..analysis.verdicts.recording import conclude
    from ..jobs.demo import measure_demo
    from .output import Progress

    with Progress() as progress:
        made = measure_demo(Path(folder), backend="simulated", progress=progress)
        progress.say("judging the GPUs")
        conclude(made.store)
    return str(made.store.root)


def _has_browser() -> bool:
    """Whether a person sits here with a screen: over ssh, a browser in the terminal would be in the way."""
    if sys.platform == "darwin":
        return not os.environ.get("SSH_CONNECTION")
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")) and sys.stderr.isatty()
