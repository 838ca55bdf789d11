"""`whorl store`: what a store holds and who writes to it, fewer and larger files, and how long full rate is kept."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..dashboards.document import Document
from ..errors import InputError
from .options import When, cluster_option, engine_of, json_option, place_options, store_option

if TYPE_CHECKING:
    from ..store.table_logs import MovedOn

_KEEP = "How long telemetry stays at full rate, as 90d, 12h or 2w"
offline_option = click.option(
    "--offline", is_flag=True, help="Nobody else uses the store: do not wait for others that read."
)


@click.group("store", short_help="What a store holds; compact, prune, merge, tables for Spark.")
def store_group() -> None:
    """Look after a store. Collectors may write to it, and others read it, at the same time.

    \b
    whorl store status --store S
    whorl store compact --store S
    whorl store merge A B --into C
    """


@store_group.command("status", short_help="What a store holds, and who writes to it now.")
@store_option
@json_option
def status(store: str, as_json: bool) -> None:
    """Print rows, files and bytes of every table, the open journals, late and pruned rows, and free space."""
    from ..dashboards.documents.stores import status_document
    from ..store import Store
    from ..store.status import status as look
    from .output import print_answer

    found = look(Store.open(store))
    mapping = {"schema": "whorl.store.status/1", **found.as_dict()}
    print_answer(mapping, status_document(found, store), as_json=as_json)


@store_group.command("files", short_help="List the files that another engine may read.")
@store_option
@click.option("--since", type=When(), help="Only files from this time on (UTC), or 7d ago.")
@click.option("--until", type=When(), help="Only files up to this time (UTC).")
@json_option
@click.argument("tables", nargs=-1)
def list_files(
    store: str, since: datetime | None, until: datetime | None, as_json: bool, tables: tuple[str, ...]
) -> None:
    """Print the Parquet files of TABLES (all tables if you name none) that hold their rows at this moment, one a line.

    For Spark, ClickHouse, Polars and others: docs/store.md. Left out are files that were replaced, files of journals
    that are not sealed yet, and damaged files. The rows of `late` take the place of those of `telemetry` with their
    key. The file _schema.parquet has every column and no row.
    """
    from ..store import Store
    from ..store.file_names import EMPTY, EVER, Bounds
    from ..store.schema import LATE, LATEST, TABLES
    from .output import print_json

    names = [spec.name for spec in (*TABLES, LATE) if spec != LATEST]
    if unknown := [name for name in tables if name not in names]:
        raise InputError(f"there are no files of a table {unknown[0]!r}; there are {', '.join(names)}")
    opened = Store.open(store)
    first_us = EVER.first_us if since is None else _microseconds(since)
    last_us = EVER.last_us if until is None else _microseconds(until)
    rows = opened.rows(tables or names, Bounds(first_us, last_us))
    paths = {
        name: [str(path.absolute()) for path in (opened.root / name / EMPTY, *rows[name].files) if path.exists()]
        for name in tables or names
    }
    if as_json:
        print_json({"schema": "whorl.store.files/1", "tables": paths})
    else:
        click.echo("\n".join(itertools.chain.from_iterable(paths.values())))


def _microseconds(time: datetime) -> int:
    """A time in UTC without zone, in microseconds since 1970."""
    return (time.replace(tzinfo=UTC) - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)


@store_group.command("compact", short_help="Join many small files into few large ones.")
@store_option
@click.option("--keep", metavar="TIME", help=f"{_KEEP}: prune as well.")
@offline_option
@place_options
@json_option
def compact(store: str, keep: str | None, offline: bool, as_json: bool, **place: Any) -> None:
    """Seal the journals of dead writers, put late rows in place, and join small files.

    \b
    whorl store compact --store S --keep 90d

    Of days that are over, the energy of each GPU and minute is written, so that `whorl energy` need not read them
    again: --on says where these are made. It may be interrupted, and the next time goes on. Where another process
    compacts the store, it says so and ends.
    """
    from dataclasses import asdict

    from ..analysis.energy.minutes import write_minutes
    from ..dashboards.documents import stores as words
    from ..store import Store, table_logs
    from ..store.retention import seconds
    from .output import ProgressBar, print_answer

    if keep is not None:
        seconds(keep)  # a wrong one is said before anything is done
    opened = Store.open(store)
    with _alone(as_json=as_json), engine_of(place, store) as engine, ProgressBar() as progress:
        done = opened.compact(offline=offline, progress=progress.say)
        days = write_minutes(opened, offline=offline, now_ns=time.time_ns(), progress=progress.say, engine=engine)
        pruned = None if keep is None else opened.prune(keep, offline=offline, progress=progress.say)
        logs = table_logs.move_on(opened, progress=progress.say)
    of_pruned = () if pruned is None else words.pruned(pruned, dry_run=False)
    mapping = {"schema": "whorl.store.compact/1", **vars(done), "energy_days": days, "pruned": pruned and vars(pruned)}
    parts = [*words.compacted(done, days), *of_pruned, *words.moved_on(logs, store)]
    print_answer(mapping | {"logs": [asdict(log) for log in logs]}, Document("", parts), as_json=as_json)
    if done.unreadable:
        click.get_current_context().exit(1)
    _leave(logs)


@store_group.command("prune", short_help="Keep one row a minute of old telemetry.")
@store_option
@click.option("--keep", metavar="TIME", help=f"{_KEEP}. Default: `keep` in store.toml.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@offline_option
@json_option
def prune(store: str, keep: str | None, dry_run: bool, offline: bool, as_json: bool) -> None:
    """Turn telemetry older than --keep into one row a minute: lowest, mean and highest, and how many rows.

    The view `history` shows both. Counted in days, whole days (UTC) go; else whole minutes. The energy of each minute
    is written before, as `whorl store compact` does.
    """
    from dataclasses import asdict

    from ..analysis.energy.minutes import write_minutes
    from ..dashboards.documents import stores as words
    from ..store import Store, table_logs
    from ..store.retention import configured, seconds
    from .output import ProgressBar, print_answer

    opened = Store.open(store)
    keep = keep or configured(opened.root)
    if keep is not None:
        seconds(keep)  # a wrong one is said before anything is done
    with _alone(as_json=as_json), ProgressBar() as progress:
        if not dry_run and keep is not None:
            write_minutes(opened, offline=offline, now_ns=time.time_ns(), progress=progress.say)
        done = opened.prune(keep, dry_run=dry_run, offline=offline, progress=progress.say)
        logs = [] if dry_run else table_logs.move_on(opened, progress=progress.say)
    moved = [asdict(log) for log in logs]
    mapping = {"schema": "whorl.store.prune/1", "dry_run": dry_run, **vars(done), "logs": moved}
    parts = [*words.pruned(done, dry_run=dry_run), *words.moved_on(logs, store)]
    print_answer(mapping, Document("", parts), as_json=as_json)
    _leave(logs)


def _leave(logs: Sequence[MovedOn]) -> None:
    """End with status 1 where a log stayed behind although its library is there."""
    if any(log.failure and log.has_library for log in logs):
        click.get_current_context().exit(1)


@store_group.command("upgrade", short_help="Bring a store of an older whorl to this one's format.")
@store_option
@offline_option
@json_option
def upgrade(store: str, offline: bool, as_json: bool) -> None:
    """Bring a store of an older format to the present one, whole or not at all.

    Stop its collectors first. It needs as much free space as the store takes. It may be interrupted: run it again.
    """
    from dataclasses import asdict

    from ..dashboards.documents import stores as words
    from ..store import Store, table_logs
    from ..store.upgrade import upgrade as bring
    from .output import ProgressBar, print_answer

    with ProgressBar() as progress:
        done = bring(Path(store), offline=offline, progress=progress.say)
        logs = table_logs.move_on(Store.open(store), progress=progress.say) if done.older != done.newer else []
    mapping = {"schema": "whorl.store.upgrade/1", **vars(done), "logs": [asdict(log) for log in logs]}
    parts = [*words.moved_on(logs, store), *words.upgraded(done)]
    print_answer(mapping, Document("", parts), as_json=as_json)


@store_group.command("merge", short_help="Take whole stores into one, every row once.")
@click.argument("sources", metavar="STORE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--into", metavar="DIR", required=True, help="The store that takes them in; it is made if needed.")
@click.option("--cluster", metavar="NAME", help="The cluster that all their rows get.  [default: their own]")
@json_option
def merge(sources: tuple[Path, ...], into: str, cluster: str | None, as_json: bool) -> None:
    """Take other stores, or files of their tables, into a store. The same run or reading counts once.

    Run it again if it was interrupted: what is stored is not stored twice. The sources stay as they are.
    """
    from dataclasses import asdict

    from ..dashboards.documents.stores import merge_parts
    from ..store import Store
    from ..store.merging import merge as take_in
    from .output import ProgressBar, print_json, show

    merged = []
    place = Store.find(into) or Path(into)
    with ProgressBar() as progress:
        for source in sources:
            merged.append(take_in(place, source, cluster=cluster, progress=progress.say))
            place = place if isinstance(place, Store) else Store.open(place)
            if not as_json:
                progress.clear()
                show(merge_parts(merged[-1]))
    if as_json:
        print_json({"schema": "whorl.store.merge/1", "into": into, "sources": [asdict(source) for source in merged]})


@store_group.command("register", short_help="Tables for Spark, Trino, Polars, DuckDB, without a copy.")
@store_option
@click.option("--delta", "chosen", flag_value="delta", multiple=True, help="Make, or bring up to date, the Delta log.")
@click.option("--iceberg", "chosen", flag_value="iceberg", multiple=True, help="The same of the Iceberg log.")
@click.option("--forget", type=click.Choice(("delta", "iceberg")), help="Remove this log. The files of the store stay.")
@json_option
def register(store: str, chosen: tuple[str, ...], forget: str | None, as_json: bool) -> None:
    """Enter the files of a store's tables in an open table log, or bring the logs that it has up to date.

    The files stay where they are. `whorl store compact` does the same at its end for every log that the store has.
    """
    from dataclasses import asdict

    from ..dashboards.documents import stores as words
    from ..store import Store, table_logs
    from .output import ProgressBar, print_json, show

    opened = Store.open(store)
    if forget is not None:
        table_logs.forget(opened.root, forget)
    with ProgressBar() as progress:
        moved = [table_logs.register(opened, log, progress=progress.say) for log in chosen]
        if not chosen and forget is None:
            moved = table_logs.move_on(opened, progress=progress.say)
    if not moved and forget is None:
        raise InputError(f"{store} is in no table log yet: choose --delta or --iceberg")
    if as_json:
        logs = [asdict(log) for log in moved]
        print_json({"schema": "whorl.store.register/1", "logs": logs, "forgotten": forget})
    else:
        if forget is not None:
            click.echo(f"the {forget} log is removed; the store's own files stay")
        show(words.registered(moved))
    if any(log.failure for log in moved):
        click.get_current_context().exit(1)


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
    import pyarrow as pa

    from ..analysis.choosing import find
    from ..store import Store
    from ..store.events import Event, event_rows
    from ..store.vocabulary import EventKind
    from .output import print_json

    opened = Store.open(store)
    row = find(opened, gpu, cluster)
    sentence = f"{row['gpu']} was taken out of {row['node'] or 'its node'}"
    event = Event(EventKind.RETIRED, row["gpu"], sentence, ts_ns=time.time_ns(), node=row["node"])
    rows = pa.Table.from_batches([event_rows([event], cluster=row["cluster"])])
    opened.append({"events": rows}, f"retired-{event.ts_ns}")
    if as_json:
        print_json({"schema": "whorl.store.retire/1", "gpu": event.gpu, "node": event.node})
    else:
        click.echo(f"{event.gpu} is retired until it is seen again")


@contextlib.contextmanager
def _alone(*, as_json: bool) -> Iterator[None]:
    """End the command with a sentence where another process compacts or prunes the store."""
    from ..store.replacing import TakenError

    try:
        yield
    except TakenError as error:
        click.echo(str(error), err=as_json)
        click.get_current_context().exit(0)
