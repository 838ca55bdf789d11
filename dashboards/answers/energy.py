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
    from ...analysis.energy.held_idle import HeldIdle
    from ...analysis.energy.quote import OneJob, Quoted
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
    from ...analysis.energy.quote import one_job
    from ..documents.energy import energy_document
    from ..documents.job import job_document

    question = _question(options)
    if job is None or by != answers.By.JOB:
        answer = answers.energy(opened(store), by, question, job=job, **_metering(options))
        document = partial(energy_document, store=folder(store))
        return Reply(answer, _energy_mapping, document, frame=answer.rows).covering(answer.booked.coverage)
    of_job = one_job(opened(store), job, question, **_metering(options))
    notes = () if of_job.elsewhere is None else of_job.elsewhere.notes
    reply = Reply(of_job, _job_mapping, job_document, frame=of_job.answer.rows, notes=notes)
    return reply.covering(of_job.answer.booked.coverage)


def _energy_mapping(answer: EnergyAnswer) -> dict[str, Any]:
    """The document of `whorl.energy/1`."""
    from ...analysis.energy.answers import SCHEMA
    from ...analysis.energy.billing import hours_share
    from ..documents.energy import sensor_error

    booked = answer.booked
    return {
        "schema": SCHEMA,
        "rows": answer.rows.to_dicts(),
        "by": answer.by.value,
        "since": booked.since,
        "until": booked.until,
        "total": answer.total or None,
        "not_read_s": booked.dark_s,
        "currency": booked.settings.currency,
        "settings": None if booked.settings.path is None else str(booked.settings.path),
        "factors": booked.factors.to_dicts(),
        "co2e_hours_share": hours_share(booked.factors),
        "sensor": sensor_error(booked),
        **({} if answer.gpus is None else {"gpus": answer.gpus.to_dicts(), "beside": answer.beside}),
    }


def _job_mapping(job: OneJob) -> dict[str, Any]:
    """The document of `whorl.energy/1` of one job."""
    from ..documents.job import quote_rows

    mapping = _energy_mapping(job.answer)
    if job.elsewhere is None:
        return mapping
    gpus = job.gpus.drop("verdicts").to_dicts()
    return {**mapping, "gpus": gpus, "what_if": quote_rows(job.elsewhere), "excess": job.elsewhere.lost}


def energy_reconcile(store: Store | str | Path, **options: Unpack[MeteredOptions]) -> Reply[Balance]:
    """Hold what was metered against where it went, GPU by GPU, as `whorl energy reconcile` does.

    `frame` has a row for each GPU; `balances` says whether the books balance, and `problems` is a frame of what is
    wrong with readings and jobs. Raises InputError where nothing was read in that time.
    """
    from ...analysis.energy.answers import reconcile
    from ..documents.books import balance_document

    balance = reconcile(opened(store), _question(options), **_metering(options))
    reply = Reply(balance, _balance_mapping, balance_document, frame=balance.gpus)
    return reply.covering(balance.booked.coverage)


def _balance_mapping(balance: Balance) -> dict[str, Any]:
    """The document of `whorl.energy.reconcile/1`: `rows` of GPUs, and `problems`, each with a sentence."""
    from ...analysis.energy.answers import RECONCILE_SCHEMA
    from ..documents.books import TO_DO, about, problem_meaning

    booked = balance.booked
    problems = []
    for row in balance.problems.iter_rows(named=True):
        sentence = f"{about(row)}: {problem_meaning(row['problem'], booked, row['cluster'])}"
        problems.append({**row, "sentence": sentence, "do": TO_DO.get(row["problem"])})
    return {
        "schema": RECONCILE_SCHEMA,
        "rows": balance.gpus.to_dicts(),
        "problems": problems,
        "balances": balance.balances,
        "since": booked.since,
        "until": booked.until,
        "not_read_s": booked.dark_s,
    }


def energy_calibrate(
    store: Store | str | Path, *, dry_run: bool = False, **options: Unpack[EnergyOptions]
) -> Reply[Calibration]:
    """Learn gain and offset of boards from the power of their nodes, as `whorl energy calibrate` does.

    `frame` has a row for each GPU. It is stored, and energy is then that of calibrated boards; with `dry_run` nothing
    is stored. Raises InputError for settings that cannot be used, for a time in which nothing was read, and for a
    store without GPUs.
    """
    from ...analysis.energy.calibration import SCHEMA, calibrate
    from ..documents.books import calibration_document

    answer = calibrate(opened(store), dry_run=dry_run, progress=options.get("progress"), **_stated(options))

    def mapping(answer: Calibration) -> dict[str, Any]:
        rows, refused = answer.boards.to_dicts(), answer.refused.to_dicts()
        return {"schema": SCHEMA, "rows": rows, "nodes": answer.nodes, "refused": refused, "stored": answer.stored}

    return Reply(answer, mapping, calibration_document, frame=answer.boards)


def energy_excess(store: Store | str | Path, by: str = "gpu", **options: Unpack[MeteredOptions]) -> Reply[FleetExcess]:
    """What slow and hungry GPUs cost beyond the median GPU, by gpu, node or job, as `whorl energy excess` says it.

    Raises InputError where no GPU was compared with others, and where nothing was read in that time.
    """
    from ...analysis.energy.answers import SCHEMA
    from ...analysis.energy.excess import fleet_excess
    from ..documents.job import excess_document

    excess = fleet_excess(opened(store), by, _question(options), **_metering(options))
    booked = excess.booked

    def mapping(excess: FleetExcess) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "rows": excess.rows.to_dicts(),
            "by": excess.by.value,
            "totals": excess.totals.to_dicts(),
            "since": booked.since,
            "until": booked.until,
            "currency": booked.settings.currency,
            "notes": list(excess.notes),
        }

    document = partial(excess_document, store=folder(store))
    return Reply(excess, mapping, document, frame=excess.rows, notes=excess.notes).covering(booked.coverage)


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
    from ..documents.job import quote_document, quote_rows

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
            option = name if name in ("time", "model") else f"--{name}"
            raise InputError(f"{option} works only with {'--job' if job is None else '--workload'}")
    if job is not None:
        of_job = answers.energy(opened(store), question=_question(stated), job=job, progress=stated.get("progress"))
        answer = quote_job(opened(store), job, of_job, deadline_s=deadline_s, shares=shares)
    else:
        time_s = seconds_of(stated.get("time", 3600.0))
        names = {name: stated[name] for name in ("gpus", "model", "cluster") if name in stated}
        work = FutureJob(stated["workload"], time_s=time_s, deadline_s=deadline_s, **names)
        answer = workload_options(opened(store), work, shares=shares, settings=stated.get("settings"))

    def mapping(answer: Quoted) -> dict[str, Any]:
        work, (since, until) = answer.work, answer.ends
        return {
            "schema": answers.SCHEMA,
            "rows": quote_rows(answer),
            "job": {name: getattr(work, name) for name in ("busy", "use", "workload", "limit_w", "gpus")},
            "since": since,
            "until": until,
            "currency": answer.settings.currency,
            "notes": list(answer.notes),
        }

    return Reply(answer, mapping, quote_document, notes=answer.notes)


def idle_mapping(idle: HeldIdle) -> dict[str, Any]:
    """The document of `whorl.jobs_idle/1`: GPUs that jobs held without use."""
    from ...analysis.energy.held_idle import SCHEMA

    return {
        "schema": SCHEMA,
        "rows": idle.jobs.to_dicts(),
        "gpus": idle.gpus.to_dicts(),
        "total": dict(idle.total) or None,
        **{name: getattr(idle, name) for name in ("gpus_not_known", "since", "until")},
        **{name: getattr(idle.options, name) for name in ("least_s", "price")},
        "currency": idle.currency,
        "co2e_reason": idle.carbon_reason,
        "cost_reason": idle.cost_reason,
    }


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
