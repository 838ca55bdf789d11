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

_OF_SLURM = ("account", "partition")
NAMES = ("on", "workers", *_OF_SLURM, "or_here")
"""The arguments of a verb that has `place_options`."""

place_options = options(
    click.option(
        "--on", metavar="WHERE", help="Where telemetry is read: here, dask://HOST:PORT or slurm.  [default: here]"
    ),
    click.option(
        "--workers", type=click.IntRange(1), metavar="N", help="How many: jobs of Slurm, or threads here.  [default: 4]"
    ),
    click.option("--account", metavar="NAME", help="Slurm account of the workers.  [default: whorl.toml]"),
    click.option("--partition", metavar="NAME", help="Slurm partition of the workers.  [default: whorl.toml]"),
    click.option("--or-here", is_flag=True, default=None, help="If the workers cannot be had, go on here."),
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
    on = place["on"]
    if on is None:
        for name, value in place.items():
            if value:
                flag = f"--{name.replace('_', '-')}"
                raise click.UsageError(f"{flag} says nothing without a place: give --on slurm, too")
    if on is not None:
        Store.open(store)
    account, partition = (place[name] or (configured(name) if on == "slurm" else None) for name in _OF_SLURM)
    with (
        Unwinding((signal.SIGTERM, signal.SIGHUP), apart_s=math.inf),
        engine(
            on or "here",
            workers=place["workers"],
            or_here=bool(place["or_here"]),
            tell=tell,
            account=account,
            partition=partition,
        ) as opened,  # fmt: skip
    ):
        yield opened
