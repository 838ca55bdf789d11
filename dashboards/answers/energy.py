"""What energy the GPUs used, whose it was, and what it would have been elsewhere: `whorl energy` and its sub-verbs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ...errors import InputError
from ...store.instants import seconds_of, time_of
from .reply import Reply, folder, opened

if TYPE_CHECKING:
    from ...analysis.energy.answers import EnergyAnswer
    from ...analysis.energy.books import Balance, EnergyQuestion
    from ...analysis.energy.calibration import Calibration
    from ...analysis.energy.excess import FleetExcess
    from ...analysis.energy.one_job import OneJob
    from ...analysis.energy.quote import Quoted
    from ...analysis.engines import Engine
    from ...store import Store


class EnergyOptions(TypedDict, total=False):
    """The options that all functions of energy take; each is None where it is left out."""

    cluster: str | None
    """Only this cluster."""
    since: datetime | str | None
    """Only from this time on (UTC), or so long ago: "30d"."""
    until: datetime | str | None
    """Only up to this time; the last reading where it is left out."""
    settings: str | Path | None
    """The file of carbon, prices and more; `energy.toml` in the store's folder where it is left out."""
    progress: Callable[[str], None] | None
    """Called with what goes on."""


class MeteredOptions(EnergyOptions, total=False):
    """The options of answers that are made in parts."""

    engine: Engine
    """Where the parts are made, as `whorl.engine` gives it; in this process where it is left out."""


class QuoteOptions(EnergyOptions, total=False):
    """The options of `energy_quote` beside those."""

    workload: str | None
    """What to run, instead of a job that has run; a name of `runs.workload`."""
    gpus: int | Sequence[str] | None
    """Of a workload: on so many GPUs, or on those with these names; 1 where it is left out."""
    time: float | str | None
    """Of a workload: how long it takes at the default power limit (s, or as "2h"); 1h where it is left out."""
    model: str | None
    """Of a workload: on this model of GPU, or a part of its name."""
    cap: float | None
    """Only under this power cap, as a share of the limit: 0.6; caps of 90 % to 50 % where it is left out."""


def energy(
    store: Store | str | Path, by: str = "job", *, job: str | None = None, **options: Unpack[MeteredOptions]
) -> Reply[EnergyAnswer] | Reply[OneJob]:
    """The energy of a store's GPUs by job, user, account, gpu, node or day, or of one job, as `whorl energy` says it.

    `frame` has a row for each, the largest first: joules with the 95 % interval, grams and money. Raises InputError for
    a job or cluster that the store does not know, and where nothing was read in that time.
    """
    from ...analysis.energy import answers
    from ...analysis.energy.one_job import one_job
    from ..printed import energy as printed

    question = _question(options)
    if job is None or by != answers.By.JOB:
        answer = answers.energy(opened(store), by, question, job=job, **_metering(options))
        parts, coverage = partial(printed.energy_parts, answer, folder(store)), answer.booked.coverage
        return Reply(answer, partial(printed.energy_document, answer), parts, frame=answer.rows).covering(coverage)
    of_job = one_job(opened(store), job, question, **_metering(options))
    elsewhere, rows = of_job.elsewhere, of_job.answer.rows
    if elsewhere is None:
        parts = partial(printed.energy_parts, of_job.answer, folder(store))
    else:
        parts = partial(printed.job_parts, of_job.answer, elsewhere)
    notes = () if elsewhere is None else elsewhere.notes
    coverage = of_job.answer.booked.coverage
    return Reply(of_job, partial(printed.job_document, of_job), parts, frame=rows, notes=notes).covering(coverage)


def energy_reconcile(store: Store | str | Path, **options: Unpack[MeteredOptions]) -> Reply[Balance]:
    """Hold what was metered against where it went, GPU by GPU, as `whorl energy reconcile` does.

    `frame` has a row for each GPU; `balances` says whether the books balance, and `problems` is a frame of what is
    wrong with readings and jobs. Raises InputError where nothing was read in that time.
    """
    from ...analysis.energy.answers import reconcile
    from ..printed import energy as printed

    balance = reconcile(opened(store), _question(options), **_metering(options))
    parts, coverage = partial(printed.balance_parts, balance), balance.booked.coverage
    return Reply(balance, partial(printed.balance_document, balance), parts, frame=balance.gpus).covering(coverage)


def energy_calibrate(
    store: Store | str | Path, *, dry_run: bool = False, **options: Unpack[EnergyOptions]
) -> Reply[Calibration]:
    """Learn gain and offset of boards from the power of their nodes, as `whorl energy calibrate` does.

    `frame` has a row for each GPU. It is stored, and energy is then that of calibrated boards; with `dry_run` nothing
    is stored. Raises InputError for settings that cannot be used.
    """
    from ...analysis.energy.calibration import calibrate
    from ..printed import calibration as printed

    answer = calibrate(opened(store), dry_run=dry_run, progress=options.get("progress"), **_stated(options))
    return Reply(answer, partial(printed.document, answer), partial(printed.answer, answer), frame=answer.boards)


def energy_excess(store: Store | str | Path, by: str = "gpu", **options: Unpack[MeteredOptions]) -> Reply[FleetExcess]:
    """What slow and hungry GPUs cost beyond the median GPU, by gpu, node or job, as `whorl energy excess` says it.

    Raises InputError where no GPU was compared with others, and where nothing was read in that time.
    """
    from ...analysis.energy.excess import fleet_excess
    from ..printed import energy as printed

    excess = fleet_excess(opened(store), by, _question(options), **_metering(options))
    parts = partial(printed.excess_parts, excess, folder(store))
    document, coverage = partial(printed.excess_document, excess), excess.booked.coverage
    return Reply(excess, document, parts, frame=excess.rows, notes=excess.notes).covering(coverage)


def energy_quote(
    store: Store | str | Path,
    job: str | None = None,
    *,
    deadline: float | str = 86_400.0,
    **options: Unpack[QuoteOptions],
) -> Reply[Quoted]:
    """What a job would have taken on other GPUs, under power caps and at another hour, as `whorl energy quote` says it.

    With a `workload` instead of a job: what that takes on GPUs of a model before it has run, from its runs in the
    store. `deadline`: within this time from now (s, or as "12h") it must end, for the greenest hour. `frame` has a row
    for each option. Raises InputError for a job that the store does not know, for a workload that did not run at the
    default power limit, and unless exactly one of job and workload is named.
    """
    from ...analysis.energy import answers
    from ...analysis.energy.options import CAPS
    from ...analysis.energy.quote import FutureJob, quote_job, workload_options
    from ..printed import energy as printed

    stated: Any = {name: value for name, value in options.items() if value is not None}
    cap = stated.pop("cap", None)
    if cap is not None and not 0 < cap <= 1:
        raise InputError(f"a power cap is a share of the limit above 0 and at most 1, as 60%, not {cap:g}")
    shares, deadline_s = CAPS if cap is None else (cap,), seconds_of(deadline)
    if (job is None) == ("workload" not in stated):
        raise InputError("a quote is of a job that has run or of a workload: name one of --job and --workload")
    others = ("since", "until") if job is None else ("gpus", "time", "model")
    for name in others:
        if name in stated:
            raise InputError(f"--{name} works only with {'--job' if job is None else '--workload'}")
    if job is not None:
        of_job = answers.energy(opened(store), question=_question(stated), job=job, progress=stated.get("progress"))
        answer = quote_job(opened(store), job, of_job, deadline_s=deadline_s, shares=shares)
    else:
        time_s = seconds_of(stated.get("time", 3600.0))
        names = {name: stated[name] for name in ("gpus", "model", "cluster") if name in stated}
        work = FutureJob(stated["workload"], time_s=time_s, deadline_s=deadline_s, **names)
        answer = workload_options(opened(store), work, shares=shares, settings=stated.get("settings"))
    parts = partial(printed.quote_parts, answer)
    return Reply(answer, partial(printed.quote_document, answer), parts, notes=answer.notes)


def _metering(options: MeteredOptions) -> dict[str, Any]:
    """Where the parts are made, and who is told of it."""
    return {name: options[name] for name in ("progress", "engine") if options.get(name) is not None}


def _question(options: EnergyOptions) -> EnergyQuestion:
    from ...analysis.energy.books import EnergyQuestion

    return EnergyQuestion(**_stated(options))


def _stated(options: EnergyOptions) -> dict[str, Any]:
    """Cluster, times in UTC, and settings."""
    since, until = time_of(options.get("since")), time_of(options.get("until"))
    return {"cluster": options.get("cluster"), "since": since, "until": until, "settings": options.get("settings")}
