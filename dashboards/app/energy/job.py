"""One job: its energy, its GPUs and their place in the fleet, what it lost to hardware, and what it would have taken
elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from dash import dcc, html

from ....analysis.energy.one_job import OneJob
from ...energy_table import Shown, of_gpus, shown
from ...energy_tiles import costs, lost, used
from ...figures.energy_places import GPUS, places
from ...printed import energy_job
from ...printed.energy import carbon
from ...printed.energy_quote import options
from ...table import MISSING, Table, count, many
from ..grid import Column, table
from ..page import command, graph, prose, rows, section, tiles, told
from ..state import MOST_GPUS
from .columns import columns, of_gpu, with_interval

if TYPE_CHECKING:
    from dash.development.base_component import Component

    from .asked import Asked

_MOST = 1000  # GPUs and tasks that are listed
_BESIDE = 50
_SHARE = "the part of the GPU that the job had"
_METRICS = ("power_mw", "utilization", "temperature_c")


def to_all(asked: Asked) -> Component:
    """The way back from one job."""
    return html.P(dcc.Link("← All jobs", href=asked.state.href("energy", job=None)))


def body(found: OneJob, asked: Asked) -> list[Component]:
    """The page of a job, or of the tasks of an array."""
    answer = found.answer
    parts: list[Any] = [to_all(asked)]
    jobs = answer.rows.head(_MOST).to_dicts()
    if not jobs:
        parts.append(told(html.P(f"Nothing of job {asked.state.job} was metered: none of its GPUs has readings.")))
        return parts
    if len(jobs) == 1:
        said = energy_job.said(jobs[0])
        parts += [html.P(said[0].upper() + said[1:], className="said"), *_doubts(jobs[0])]
    else:
        tasks = many(answer.rows.height, "job")
        parts.append(html.P(f"Job {asked.state.job}: {tasks} of this number, as of an array.", className="said"))
    whole = jobs[0] if len(jobs) == 1 else answer.total
    figures = used(answer, whole)
    if whole["energy_j"] is not None:
        figures += [*lost(found.elsewhere), *costs(whole, answer.booked)]
    parts.append(tiles(figures))
    if len(jobs) > 1:
        frame = shown(answer)
        shown_ = columns(answer.by, frame)
        listed = table("energy-tasks", shown_, frame.rows.head(_MOST), label="Tasks of the array")
        parts.append(section("Its tasks", listed))
    if found.gpus["gpu"].count():
        parts.append(_its_gpus(found, asked))
    parts += [_elsewhere(found), _beside(found, asked)]
    if answer.booked.settings.path is not None:
        parts.append(html.Ul([html.Li(prose(one)) for one in carbon(answer)], className="soft says"))
    return parts


def _doubts(row: dict[str, Any]) -> list[Component]:
    """What keeps the figures of a job from being final."""
    if row["ended"] is None:
        return [told(html.P("It is still running: the figures are those up to the last reading."))]
    return []


def _its_gpus(found: OneJob, asked: Asked) -> Component:
    frame = of_gpus(found)
    drawn = places(frame.rows)
    parts: list[Any] = [_to_telemetry(found, asked)]
    if drawn is None:
        says = "Nobody knows where its GPUs stand, as they were not compared with others of their model: run"
        parts.append(told(html.P(says), command("whorl campaign"), kind="empty"))
    else:
        more = f" The {GPUS} slowest are drawn." if frame.rows.height > GPUS else ""
        says = "Slower than the median GPU of its model in such work, with the 95 % interval of another sitting."
        parts.append(html.P(says + more, className="soft"))
        parts.append(graph(drawn, "How much slower its GPUs are", id="energy-places"))
    parts.append(table("energy-gpus", _of_gpus(frame), frame.rows.head(_MOST), label="GPUs of the job"))
    return section("Its GPUs, and where they stand in the fleet", *parts)


def _to_telemetry(found: OneJob, asked: Asked) -> Component:
    since, until = found.ends_ns
    gpus = tuple(found.gpus["gpu"].drop_nulls().head(MOST_GPUS))
    href = asked.state.href("telemetry", gpu=gpus, metric=_METRICS, since=since, until=until, job=None, last=None)
    return html.P(dcc.Link("Their power over the time of the job", href=href))


def _of_gpus(frame: Shown) -> list[Column]:
    rows_ = frame.rows
    found = [
        of_gpu("what", "GPU"),
        *([] if rows_["model"].is_null().all() else [Column("model", "model")]),
        *([] if (rows_["share"] == 1).all() else [Column("share", "share", "number", digits=2, says=_SHARE)]),
        *with_interval("energy", frame.energy, frame.energy.name, "energy"),
        Column("idle", "idle %", "number", says="what it would have drawn without work"),
        Column("measured", "measured %", "number", says="the part of the time with readings"),
    ]
    if "rank" in rows_.columns and not rows_["rank"].is_null().all():
        found += [
            Column("slower_pct", "slower", "percent", digits=2, says="than the median GPU of its model"),
            Column("slower_low_pct", "95 %", "interval", digits=2, high="slower_high_pct", unit="%"),
            Column("rank", "rank", "number", says="1 is the fastest"),
            Column("compared", "of", "number", says="n: how many GPUs of its model were compared"),
            Column("basis", "in", says="the work in which they were compared"),
            *with_interval("lost", frame.lost, f"lost {frame.lost.name}", "GPU time lost to hardware"),
        ]
    found.append(of_gpu("verdicts", "verdicts"))
    whys = [name for name in ("why", "lost_why") if name in rows_.columns and not rows_[name].is_null().all()]
    names = {"why": "why no energy", "lost_why": "why nothing is known of its loss"}
    return found + [Column(name, names[name], width=300) for name in whys]


def _elsewhere(found: OneJob) -> Component:
    title = "What it would have taken elsewhere"
    if found.elsewhere is None:
        return section(title, told(html.P(prose(found.why_not or MISSING))))
    why = {one.reason for one in found.elsewhere.quotes}
    if len(why) == 1 and None not in why:
        return section(title, told(html.P(prose(f"Nobody knows: {why.pop()}."))))
    notes = [html.P(prose(one), className="soft") for one in found.elsewhere.notes]
    return section(title, *_drawn(options(found.elsewhere)), *notes)


def _drawn(parts: Iterable[str | Table]) -> list[Component]:
    """What a verb prints, as a page shows it."""
    return [
        rows(part.header, part.rows, right=part.right, wrapped=part.wrapped, label="What it would have taken elsewhere")
        if isinstance(part, Table)
        else html.P(prose(part), className="soft")
        for part in parts
        if part
    ]


def _beside(found: OneJob, asked: Asked) -> Component:
    others = found.answer.others
    if others is None or others.is_empty():
        return section("Other jobs beside it", html.P("None is known on its nodes at that time.", className="soft"))
    listed = [
        [
            dcc.Link(row["job_id"], href=asked.state.href("energy", job=row["job_id"])),
            row["user"], row["account"], _at(row["began"]), _at(row["ended"]), count(row["gpus"]), count(row["shared"]),
        ]
        for row in others.head(_BESIDE).iter_rows(named=True)
    ]  # fmt: skip
    head = ("job", "user", "account", "began (UTC)", "ended (UTC)", "GPUs there", "of these, GPUs of this job")
    more = f" The first {_BESIDE} are listed." if others.height > _BESIDE else ""
    says = f"{many(others.height, 'job')} had GPUs on its nodes at that time.{more}"
    return section("Other jobs beside it", rows(head, listed, right=(5, 6), label="Jobs beside it"), says=says)


def _at(when: Any) -> str:
    return "now" if when is None else f"{when:%Y-%m-%d %H:%M:%S}"
