"""`whorl dashboard`: pages over a store in a browser."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import webbrowser
from contextlib import ExitStack
from html import escape
from pathlib import Path
from urllib.parse import quote

import click

from .options import OptionKey, settings, store_choice, typed

_LOOK_S = 0.2  # a signal ends the command within this time


@click.command("dashboard", short_help="Look at a store in a browser.")
@store_choice("The store. Not needed with --demo.")
@click.option("--demo", is_flag=True, help="Measure and show 64 simulated GPUs.")
@click.option(
    "--listen",
    metavar="ADDR:PORT",
    default="127.0.0.1:8050",
    show_default=True,
    help="Where the pages are; :8050 is every address.",
)
@click.option(
    "--token-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The token stands in this file, mode 600; `none`: no token.",
)
@settings(
    OptionKey("prefix", click.STRING, "Where a proxy shows the pages.", "/", metavar="/PATH/"),
    OptionKey("browser", click.BOOL, "Start a browser.", True),
    OptionKey("sql-seconds", click.FloatRange(1, 3600), "Longest time of a query of the page SQL.", 30.0),
    OptionKey("sql-memory", click.IntRange(100), "Memory of such a query.", 1000, metavar="MB"),
)
@click.pass_context
def dashboard(
    ctx: click.Context,
    /,
    store: str | None,
    demo: bool,
    listen: str,
    token_file: Path | None,
    prefix: str,
    sql_seconds: float,
    sql_memory: int,
    browser: bool,
) -> None:
    """Show a store in a browser until you stop it: Ctrl-C, SIGTERM. It changes nothing in the store.

    \b
    whorl dashboard --store S                  open the address that it prints
    whorl dashboard --demo                     a simulated fleet
    whorl dashboard --store S --listen :8050   for others too

    The printed address holds a token, made anew at each start: only who has it can read the store. A token that stays
    is one word of 16 characters or more, in a file that only you can read (--token-file). Needs the packages of
    whorl's extra `dashboard`. docs/dashboard.md explains more.
    """
    from ..dashboards.app.access import LIMITS, check_prefix, make_token, read_token, refuse_open
    from ..dashboards.serving import Server, address
    from ..store.system.signals import Noted
    from .output import tell

    if demo == (store is not None and (typed(ctx, "store") or not demo)):
        raise click.UsageError("give --store, or --demo for a simulated fleet")
    host, port = address(listen, "127.0.0.1:8050")
    is_open = str(token_file) == "none"
    token = None if is_open else make_token() if token_file is None else read_token(token_file)
    refuse_open(host, token)
    where = check_prefix(prefix)
    with ExitStack() as ends:
        if demo:
            store = _measured(ends.enter_context(tempfile.TemporaryDirectory(prefix="whorl-demo-")))
        assert store is not None
        from ..dashboards.app.reading import QueryLimits, begin
        from ..store import Store

        opened = Store.open(store)
        reading = begin(opened)  # before what takes long to load
        from ..dashboards.app.shell import make_app
        from .answers.advice import Advisor

        reading.limits, reading.advise = QueryLimits(sql_seconds, sql_memory), Advisor()
        app = make_app(reading, prefix=where, token=token, ahead=True)
        server = Server(app.server, host, port, LIMITS, path=where)
        link = f"{server.url}?token={quote(token)}" if token else server.url
        with Noted() as signals:
            server.start()
            tell(f"the dashboard of {store} is at {link if token_file is None else server.url} (end it with Ctrl-C)")
            if browser and _has_browser():
                folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="whorl-open-"))
                webbrowser.open(_page_that_leads_to(link, Path(folder)).as_uri())
            while not signals.came:
                time.sleep(_LOOK_S)
            server.close()
        opened.close()


def _page_that_leads_to(link: str, folder: Path) -> Path:
    """A file for the browser to open: every user of the machine can read a command line, and nobody else this file."""
    page = folder / "open.html"
    page.touch(mode=0o600)
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={escape(link)}">', encoding="utf-8")
    return page


def _measured(folder: str) -> str:
    """A store with a simulated fleet, and what was found about it."""
    from ..analysis.verdicts.judgements import conclude
    from .answers.demo import DemoOptions, measure_demo
    from .output import ProgressBar

    with ProgressBar() as progress:
        measured = measure_demo(Path(folder), DemoOptions(backend="simulated", progress=progress))
        progress.say("judging the GPUs")
        conclude(measured.store)
    return str(measured.store.root)


def _has_browser() -> bool:
    """Whether a person sits here with a screen: over ssh, a browser in the terminal would be in the way."""
    if sys.platform == "darwin":
        return not os.environ.get("SSH_CONNECTION")
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")) and sys.stderr.isatty()
