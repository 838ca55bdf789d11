"""One job: its energy, its GPUs and their place in the fleet, what it lost to hardware, and what it would have taken
elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dash import dcc, html

from ....analysis.energy.one_job import OneJob
from ... import energy_words as words
from ...energy_table import energy_frame, gpu_frame
from ...energy_tiles import costs, lost, of_job
from ...figures.energy_places import GPUS, places
from ...printed.energy import options
from ...table import MISSING, Table, count, many, second
from ..grid import table
from ..page import command, graph, prose, rows, section, tiles, told
from ..state import MOST_GPUS
from .fleet import grid_columns, sentences

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from .address import EnergyAddress

_MOST = 1000  # GPUs and tasks that are listed
_BESIDE = 50
_METRICS = ("power_mw", "utilization", "temperature_c")


def to_all(address: EnergyAddress) -> Component:
    """The way back from one job."""
    return html.P(dcc.Link("← All jobs", href=address.state.href("energy", job=None)))


def body(job: OneJob, address: EnergyAddress) -> list[Component]:
    """The page of a job, or of the tasks of an array."""
    answer, number = job.answer, address.state.job
    parts: list[Any] = [to_all(address)]
    jobs = answer.rows.head(_MOST).to_dicts()
    if not jobs:
        return [*parts, told(html.P(f"Nothing of job {number} was metered: none of its GPUs has readings."))]
    total = jobs[0] if len(jobs) == 1 else answer.total
    if len(jobs) == 1:
        sentence = words.of_job(total)
        parts.append(html.P(sentence[0].upper() + sentence[1:], className="said"))
        if total["ended"] is None:
            parts.append(told(html.P("It is still running: the figures are those up to the last reading.")))
    else:
        tasks = many(answer.rows.height, "job")
        parts.append(html.P(f"Job {number}: {tasks} of this number, as of an array.", className="said"))
    figures = of_job(answer, total)
    if total["energy_j"] is not None:
        figures += [*lost(job.elsewhere), *costs(total, answer.booked)]
    parts.append(tiles(figures))
    if len(jobs) > 1:
        frame = energy_frame(answer)
        listed = table("energy-tasks", grid_columns(frame.columns), frame.rows.head(_MOST), label="Tasks of the array")
        parts.append(section("Its tasks", listed))
    if job.gpus["gpu"].count():
        parts.append(_its_gpus(job, address))
    parts += [_elsewhere(job), _beside(job, address)]
    if answer.booked.settings.path is not None:
        parts.append(sentences(words.carbon(answer)))
    return parts


def _its_gpus(job: OneJob, address: EnergyAddress) -> Component:
    frame, (since, until) = gpu_frame(job), job.ends_ns
    gpus = tuple(job.gpus["gpu"].drop_nulls().head(MOST_GPUS))
    href = address.state.href("telemetry", gpu=gpus, metric=_METRICS, since=since, until=until, job=None, last=None)
    parts: list[Any] = [html.P(dcc.Link("Their power over the time of the job", href=href))]
    if (drawn := places(frame.rows)) is None:
        says = "Nobody knows where its GPUs stand, as they were not compared with others of their model: run"
        parts.append(told(html.P(says), command("whorl campaign"), kind="empty"))
    else:
        cut = f" The {GPUS} slowest are drawn." if frame.rows.height > GPUS else ""
        says = "Slower than the median GPU of its model in such work, with the 95 % interval of another sitting."
        parts.append(html.P(says + cut, className="soft"))
        parts.append(graph(drawn, "How much slower its GPUs are", id="energy-places"))
    parts.append(table("energy-gpus", grid_columns(frame.columns), frame.rows.head(_MOST), label="GPUs of the job"))
    return section("Its GPUs, and where they stand in the fleet", *parts)


def _elsewhere(job: OneJob) -> Component:
    title = "What it would have taken elsewhere"
    if job.elsewhere is None:
        return section(title, told(html.P(prose(job.why_not or MISSING))))
    why = {quote.reason for quote in job.elsewhere.quotes}
    if len(why) == 1 and None not in why:
        return section(title, told(html.P(prose(f"Nobody knows: {why.pop()}."))))
    drawn = [
        rows(part.header, part.rows, right=part.right, wrapped=part.wrapped, label=title)
        if isinstance(part, Table)
        else html.P(prose(part), className="soft")
        for part in (*options(job.elsewhere), *job.elsewhere.notes)
        if part
    ]
    return section(title, *drawn)


def _beside(job: OneJob, address: EnergyAddress) -> Component:
    others = job.answer.others
    if others is None or others.is_empty():
        return section("Other jobs beside it", html.P("None is known on its nodes at that time.", className="soft"))
    listed = [
        [
            dcc.Link(row["job_id"], href=address.state.href("energy", job=row["job_id"])), row["user"], row["account"],
            second(row["began"], "now"), second(row["ended"], "now"), count(row["gpus"]), count(row["shared"]),
        ]
        for row in others.head(_BESIDE).iter_rows(named=True)
    ]  # fmt: skip
    head = ("job", "user", "account", "began (UTC)", "ended (UTC)", "GPUs there", "of these, GPUs of this job")
    cut = f" The first {_BESIDE} are listed." if others.height > _BESIDE else ""
    says = f"{many(others.height, 'job')} had GPUs on its nodes at that time.{cut}"
    return section("Other jobs beside it", rows(head, listed, right=(5, 6), label="Jobs beside it"), says=says)
