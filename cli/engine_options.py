"""The options that say where the parts of an answer are made, and the engine that they name."""

from __future__ import annotations

import contextlib
import math
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from ..store.configuration import configured
from ..store.system.signals import Unwinding
from .options import options

if TYPE_CHECKING:
    from ..analysis.engines import Engine

NAMES = ("on", "workers", "account")
"""The arguments of a verb that has `place_options`."""

place_options = options(
    click.option(
        "--on",
        metavar="WHERE",
        help="Where telemetry is read: here, dask://HOST:PORT, slurm or slurm:PARTITION; with `,here` after it: here "
        "if the workers cannot be had.  [default: here]",
    ),
    click.option(
        "--workers", type=click.IntRange(1), metavar="N", help="How many: jobs of Slurm, or threads here.  [default: 4]"
    ),
    click.option("--account", metavar="NAME", help="Slurm account of the workers.  [default: whorl.toml]"),
)
"""Where the parts of an answer are made: docs/store.md."""


@contextlib.contextmanager
def engine_of(chosen: dict[str, Any], store: str) -> Iterator[Engine]:
    """The engine that `place_options` name, which are taken out of `chosen`; its jobs end with the block.

    Raises UsageError for options that belong to another place, EngineError where its workers cannot be had, and before
    anything is started, StoreError where there is no store.
    """
    from ..jobs.workers import engine
    from ..store import Store
    from .output import tell

    place = {name: chosen.pop(name) for name in NAMES}
    on, *instead = str(place["on"] or "here").split(",")
    if instead not in ([], ["here"]):
        raise click.UsageError(f"--on {place['on']}: after the comma stands here, or nothing")
    if place["on"] is None:
        for name, value in place.items():
            if value:
                flag = f"--{name.replace('_', '-')}"
                raise click.UsageError(f"{flag} says nothing without a place: give --on slurm, too")
    if place["on"] is not None:
        Store.open(store)
    on, _, partition = on.partition(":") if on.startswith("slurm:") else (on, "", "")
    account = place["account"]
    if on == "slurm":
        account, partition = account or configured("account"), partition or configured("partition")
    with (
        Unwinding((signal.SIGTERM, signal.SIGHUP), apart_s=math.inf),
        engine(
            on,
            workers=place["workers"],
            or_here=bool(instead),
            tell=tell,
            account=account,
            partition=partition or None,
        ) as opened,  # fmt: skip
    ):
        yield opened
