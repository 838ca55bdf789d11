"""Who had which GPU when: the function of `whorl jobs import`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from ...dashboards.answers.reply import Reply, RowList
from ...dashboards.document import Document
from ...dashboards.words import count, first_of, many
from ...errors import InputError
from ...jobs.accounting import importing
from ...store.instants import time_of

if TYPE_CHECKING:
    from ...jobs.accounting.importing import ImportReport
    from ...store import Store


class JobOptions(TypedDict, total=False):
    """Which jobs are imported, and what is known of them; each is None or empty where it is left out."""

    since: datetime | str | None
    """Ask sacct for jobs from this time on (UTC), or so long ago: "7d"."""
    until: datetime | str | None
    file: str | Path | None
    """The saved output of sacct, instead."""
    tags: Sequence[str | Path]
    """Folders of tags that are read, too."""
    clear: bool
    """Remove the tags that were stored."""
    cluster: str | None
    time_zone: str | None
    gpus_per_node: Sequence[str]
    """How many GPUs nodes have: "4", or "n[01-18]=8"."""
    anonymise: bool


def import_jobs(store: Store | str | Path, **options: Unpack[JobOptions]) -> Reply[ImportReport]:
    """Store who had which GPU, from Slurm's accounting, its saved output, and tags, as `whorl jobs import` does.

    `frame` has one row, of what was read, stored and refused; the reply has the counts, too. Raises InputError for
    options that do not go together, SchedulerError where accounting does not answer.
    """
    file, since, until = options.get("file"), time_of(options.get("since")), time_of(options.get("until"))
    if file is not None and (since is not None or until is not None):
        raise InputError("a saved log has its own times: leave out --since and --until")
    if until is not None and since is None:
        raise InputError("--until needs --since")
    if until is not None and since is not None and until <= since:
        raise InputError("--until must be later than --since")
    if file is None and options.get("time_zone") is not None:
        raise InputError("time-zone is for --log: sacct is asked for seconds")
    sources = importing.JobSources(
        since=since,
        until=until,
        file=None if file is None else Path(file),
        tag_folders=[Path(tags) for tags in options.get("tags", ())],
        cluster=options.get("cluster"),
        time_zone=options.get("time_zone"),
        gpus_per_node=options.get("gpus_per_node", ()),
        anonymise=options.get("anonymise", False),
        clear=options.get("clear", False),
    )
    report = importing.import_jobs(store, sources)
    return Reply(report, importing.ImportReport.as_dict, _document, rows=RowList(""), notes=report.notes)


def refusals(report: ImportReport) -> Iterable[str]:
    """What was refused, for people."""
    for reason, lines in report.refused.items():
        yield f"{report.source}: refused {first_of('line', lines)}: {reason}"
    for reason, names in report.tags_refused.items():
        yield f"refused {first_of('tag', names)}: {reason}"


def _document(report: ImportReport) -> Document:
    return Document("", list(_answer(report)))


def _answer(report: ImportReport) -> Iterable[str]:
    if report.source:
        yield (
            f"{report.source}: {many(report.allocations, 'allocation')} of GPUs in cluster {report.cluster or 'n/a'}: "
            f"{count(report.stored)} stored, {count(report.known)} known already"
        )
        for reason, number in report.passed.items():
            yield f"  passed over: {count(number)} {reason}"
        if report.allocations:
            yield f"  all GPUs known by UUID: {count(report.with_gpus)} of {count(report.allocations)}"
        for reason, number in sorted(report.unknown.items(), key=lambda counted: (-counted[1], counted[0])):
            yield f"  not known: {count(number)} {reason}"
    if report.tags or report.tags_refused:
        yield f"tags: {count(report.tags)} read, {many(report.tags_stored, 'allocation')} stored"
        for reason, number in report.tags_unknown.items():
            yield f"  GPUs not known: {count(number)} {reason}"
    elif not report.source:
        yield "there are no tags: nothing was stored"
