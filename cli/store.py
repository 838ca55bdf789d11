"""`whorl store`: what a store holds and who writes to it, fewer and larger files, and how long full rate is kept."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

from .options import cluster_option, json_option, store_option

if TYPE_CHECKING:
    from pathlib import Path

    from ..store.retention import Pruned
    from ..store.status import Status

_FACTS = 14  # columns of a terminal for the name of a fact
_KEEP = "How long telemetry stays at full rate, as 90d, 12h or 2w"
offline_option = click.option(
    "--offline", is_flag=True, help="Nobody else uses the store: do not wait half a minute for others that read."
)


@click.group("store", short_help="Show what a store holds; compact it; prune old telemetry.")
def store_group() -> None:
    """Look after a store. Collectors may write to it, and others read it, at the same time."""


@store_group.command("status", short_help="What a store holds, and who writes to it now.")
@store_option
@json_option
def status(store: str, as_json: bool) -> None:
    """Print rows, files and bytes of every table, the open journals, late and pruned rows, and free space."""
    from ..store import Store
    from ..store.status import status as look
    from .output import print_json

    found = look(Store.open(store))
    if as_json:
        print_json({"schema": "whorl.store.status/1", **found.as_dict()})
    else:
        _print_status(found)


def _print_status(found: Status) -> None:
    from ..dashboards.table import MISSING, Table, count, many, number
    from .output import print_table, say

    def line(name: str, text: str) -> None:
        say(text, name.ljust(_FACTS), " " * _FACTS)

    rows = []
    for t in found.tables:
        filed = t.rows - t.in_journals
        per_row = number(t.bytes / filed if filed else None, 3)
        rows.append([t.table, count(t.rows), count(t.files), count(t.bytes), per_row])
    print_table(Table(("table", "rows", "files", "bytes", "bytes/row"), rows, (1, 2, 3, 4), leaves=(4,)))
    click.echo()
    if found.journals:
        alive = {
            True: "alive",
            False: "dead: run `whorl store compact` to seal it",
            None: "not known from here",
        }
        lines = [
            [j.writer, j.host, str(j.pid), alive[j.alive], count(j.rows), number(j.age_s, 3, suffix=" s")]
            for j in found.journals
        ]
        head = ("journal of", "host", "process", "state", "rows", "youngest row")
        print_table(Table(head, lines, (2, 4, 5), wrapped=(3,), leaves=(2, 1)))
        click.echo()
    oldest, newest = (MISSING if ns is None else _time(ns) for ns in (found.oldest, found.newest))
    hot = "none at full rate" if found.oldest is None else f"{oldest} to {newest} (UTC) at full rate"
    line("telemetry", f"{hot}; {many(found.cold_rows, 'minute')} of older telemetry")
    line("retention", f"full rate for {found.keep}" if found.keep else "none set: everything is kept")
    line("late rows", count(found.late_rows))
    line("durability", found.durability)
    if found.to_be_removed and found.removed_at is not None:
        when = _time(int(found.removed_at * 1e9))
        line("replaced", f"{many(found.to_be_removed, 'file')}, which the first whorl command after {when} removes")
    for path, reason in found.skipped.items():
        line("skipped", f"{path}: {reason}")
    line("free", f"{found.free / 2**30:,.1f} GiB")


@store_group.command("compact", short_help="Join many small files into few large ones.")
@store_option
@click.option("--keep", metavar="TIME", help=f"{_KEEP}: prune as well.")
@offline_option
@json_option
def compact(store: str, keep: str | None, offline: bool, as_json: bool) -> None:
    """Seal the journals of dead writers, put late rows in place, and join small files.

    It may be interrupted, and the next time goes on. Where another process compacts the store, it says so and ends.
    """
    from ..dashboards.table import count, many
    from ..store import Store
    from ..store.retention import seconds
    from .output import Progress, print_json

    opened = Store.open(store)
    if _busy(opened.root, as_json=as_json):
        return
    if keep is not None:
        seconds(keep)  # a wrong one is said before anything is done
    with Progress() as progress:
        done = opened.compact(offline=offline, progress=progress.say)
        pruned = None if keep is None else opened.prune(keep, offline=offline, progress=progress.say)
    if as_json:
        document: dict[str, Any] = {"schema": "whorl.store.compact/1", **vars(done)}
        print_json(document | {"pruned": None if pruned is None else vars(pruned)})
        return
    click.echo(
        f"{many(done.before, 'file')} became {count(done.after)}; {many(done.late_rows, 'late row')} put in place; "
        f"{many(done.sealed, 'journal')} of dead writers sealed"
    )
    if done.waiting:
        click.echo(f"{count(done.waiting)} files of late rows wait until the journals of their GPUs are sealed")
    if pruned is not None:
        _print_pruned(pruned, dry_run=False)


@store_group.command("prune", short_help="Keep one row a minute of old telemetry.")
@store_option
@click.option("--keep", metavar="TIME", help=f"{_KEEP}. Default: `keep` in store.toml.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@offline_option
@json_option
def prune(store: str, keep: str | None, dry_run: bool, offline: bool, as_json: bool) -> None:
    """Turn telemetry older than --keep into one row a minute: lowest, mean and highest, and how many rows.

    The view `history` shows both. Counted in days, whole days (UTC) go; else whole minutes.
    """
    from ..store import Store
    from .output import Progress, print_json

    opened = Store.open(store)
    if not dry_run and _busy(opened.root, as_json=as_json):
        return
    with Progress() as progress:
        done = opened.prune(keep, dry_run=dry_run, offline=offline, progress=progress.say)
    if as_json:
        print_json({"schema": "whorl.store.prune/1", "dry_run": dry_run, **vars(done)})
    else:
        _print_pruned(done, dry_run=dry_run)


def _print_pruned(done: Pruned, *, dry_run: bool) -> None:
    from ..dashboards.table import count, many

    verb = "would become" if dry_run else "became"
    click.echo(
        f"{many(done.rows, 'row')} before {_time(done.until)} (UTC) {verb} {many(done.minutes, 'row')} of a minute"
    )
    if not dry_run and done.rows:
        click.echo(f"{count(done.before)} bytes of files became {count(done.after)}")
    if done.sparse:
        click.echo(
            f"{many(done.sparse, 'row')} stay: they are hardly more than one a minute, and would take more space"
        )
    if done.replaced and done.free_at is not None:
        click.echo(
            f"{_left(done.replaced)}: compacting has just joined files of {_of(done.replaced)}, and keeps the old "
            f"ones for queries that still run. Run this command again at "
            f"{_time(math.ceil(done.free_at) * 10**9)} (UTC) or later"
        )
    if written := done.waiting - done.replaced:
        click.echo(
            f"{_left(written)}: a collector or another process still writes to {_of(written)}. "
            "Run this command again later"
        )


@store_group.command("retire", short_help="Note that a GPU was taken out of its node.")
@click.argument("gpu", metavar="GPU")
@store_option
@cluster_option
@json_option
def retire(gpu: str, store: str, cluster: str | None, as_json: bool) -> None:
    """Note that a GPU was taken out of its node. GPU is node/slot, the UUID, or a part that no other GPU has.

    `whorl check` does not miss it from now on. If a collector or a campaign sees it again, it counts again. All that
    is stored of it stays.
    """
    from ..jobs.checking import retire as note
    from ..store import Store
    from .output import print_json

    event = note(Store.open(store), gpu, cluster)
    if as_json:
        print_json({"schema": "whorl.store.retire/1", "gpu": event.gpu, "node": event.node})
    else:
        click.echo(f"{event.gpu} is retired until it is seen again")


def _left(days: int) -> str:
    return "1 day is left" if days == 1 else f"{days:,} days are left"


def _of(days: int) -> str:
    return "it" if days == 1 else "them"


def _busy(root: Path, *, as_json: bool) -> bool:
    from ..store.system import locks

    if not locks.is_held(root / locks.COMPACTING):
        return False
    click.echo("another process compacts or prunes this store; nothing was done", err=as_json)
    return True


def _time(ns: int) -> str:
    import numpy as np

    return str(np.datetime64(ns, "ns").astype("datetime64[s]")).replace("T", " ")
