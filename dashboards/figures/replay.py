"""Figures of replays: how long jobs took, the queue and the load over time, who held which GPU, what was gained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...analysis.replay.findings import PolicyGain
from ...analysis.replay.outcome import UNFAIR, Outcome
from ...analysis.replay.world import World
from ..style import BLUE, GREY, LEGEND, SKY, SLOWNESS, layout, line_of
from .drawing import Bar, Figure, Scatter, error_bars, figure_of, names_axis, single, upright

Floats = NDArray[np.float64]

POINTS = 400
"""Of a distribution."""
BINS = 400
"""Of a line over time."""
BARS = 2_500
"""Of a Gantt chart."""
WIDEST, NARROWEST = 5.0, 1.5
"""Of lines, in pixels."""
RATIOS = (0.01, 0.1, 0.2, 0.5, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 3, 5, 10, 100)
_RATIO_AXIS = {"type": "log", "tickvals": RATIOS, "ticktext": [f"{ratio:g}" for ratio in RATIOS]}


def jct_distribution(jct_s: Mapping[str, Floats]) -> Figure:
    """The share of jobs that were done within a time, by policy. `jct_s`: (jobs,) in s, pooled over the seeds."""
    axis = {"title": {"text": "job completion time, s"}, "type": "log", "dtick": 1}
    return _distribution(jct_s, "within %{x:,.0f} s", xaxis=axis)


def fairness_distribution(fairness: Mapping[str, Floats]) -> Figure:
    """The share of jobs up to a finish-time fairness, by policy. `fairness`: (jobs,) pooled over the seeds."""
    axis = {"title": {"text": "finish-time fairness"}, **_RATIO_AXIS}
    return _distribution(fairness, "up to %{x:.2f}", xaxis=axis, shapes=[upright(UNFAIR, GREY, "above")])


def _distribution(numbers: Mapping[str, Floats], hover: str, **axes: Any) -> Figure:
    """The share of jobs up to a number, by policy."""
    shares = {policy: _shares(of_jobs) for policy, of_jobs in numbers.items()}
    curves = {policy: (np.quantile(numbers[policy], share), 100 * share) for policy, share in shares.items()}
    axes["yaxis"] = {"title": {"text": "share of jobs, %"}, "range": [0, 101]}
    return _curves(curves, f"<br>%{{y:.0f}} % of jobs {hover}", 380, **axes)


def jct_against(jct_s: Mapping[str, Floats], baseline: str) -> Figure:
    """The time within which a share of the jobs was done, over that time with `baseline`, by policy."""
    curves = {}
    for policy, times in jct_s.items():
        share = _shares(times)
        curves[policy] = 100 * share, np.quantile(times, share) / np.quantile(jct_s[baseline], share)
    return _curves(
        curves,
        f"<br>%{{x:.0f}} % of jobs within %{{y:.2f}} times the time of {baseline}",
        380,
        xaxis={"title": {"text": "share of jobs, %"}, "range": [0, 100]},
        yaxis={"title": {"text": f"completion time / that of {baseline}"}, **_RATIO_AXIS},
    )


KINDS_OF_ENERGY = {"jobs_kwh": ("jobs", BLUE), "idle_kwh": ("idle GPUs", SKY), "base_kwh": ("nodes", GREY)}
"""Figures of energy, each with its name and colour."""


def energy_by_kind(kwh: Mapping[str, Mapping[str, float | None]]) -> Figure:
    """What drew the energy, a row of bars for each policy. `kwh`: by figure and policy; None is not known."""
    bars = [
        Bar(
            orientation="h",
            x=[mean or 0.0 for mean in kwh[figure].values()],
            y=list(kwh[figure]),
            name=name,
            marker={"color": colour},
            hovertemplate=f"%{{y}}, {name}<br>%{{x:,.4g}} kWh<extra></extra>",
        )
        for figure, (name, colour) in KINDS_OF_ENERGY.items()
        if any(mean is not None for mean in kwh[figure].values())
    ]
    policies = max(len(means) for means in kwh.values())
    return figure_of(
        bars,
        layout(
            130 + 30 * policies,
            barmode="stack",
            legend=LEGEND | {"traceorder": "normal"},
            xaxis={"title": {"text": "energy, kWh"}},
            yaxis={"autorange": "reversed", "automargin": True, "ticklabelstandoff": 6},
        ),
    )


def _shares(times: Floats) -> Floats:
    return np.linspace(0, 1, min(POINTS, max(2, len(times))))


def queue_over_time(outcomes: Mapping[str, Outcome]) -> Figure:
    """Jobs that wait, by policy, over time: means over a 400th of the time each."""
    return _over_time(outcomes, "queue", lambda _: 1.0, "jobs waiting", "%{y:,.1f} jobs")


def load_over_time(outcomes: Mapping[str, Outcome]) -> Figure:
    """GPUs held, in % of the fleet, by policy, over time: means over a 400th of the time each."""
    return _over_time(outcomes, "busy", lambda outcome: 100 / outcome.gpus, "GPUs held, %", "%{y:.0f} % held")


def _over_time(outcomes: Mapping[str, Outcome], series: str, scale: Any, title: str, hover: str) -> Figure:
    end = max(outcome.end_s for outcome in outcomes.values())
    edges = np.linspace(0, end, BINS + 1)
    curves = {}
    for policy, outcome in outcomes.items():
        assert outcome.series is not None
        values = getattr(outcome.series, series) * scale(outcome)
        until = (
            int(np.searchsorted(edges, outcome.end_s, side="right")) - 1
        )  # a replay that has ended has no queue to show
        curves[policy] = edges[:until] / 3600, binned_steps(outcome.series.time_s, values, edges)[:until]
    return _curves(
        curves,
        f", hour %{{x:,.1f}}<br>{hover}",
        320,
        shape="hv",
        xaxis={"title": {"text": "time since the trace began, h"}, "range": [0, end / 3600]},
        yaxis={"title": {"text": title}, "rangemode": "tozero"},
    )


def _curves(
    curves: Mapping[str, tuple[Floats, Floats]], hover: str, height: int, *, shape: str = "linear", **axes: Any
) -> Figure:
    """Lines by policy. Lines that are the same are one, which has all their names; the first are drawn widest.

    So a line that lies on others for a part of its way leaves an edge of them to be seen.
    """
    styles = line_of(curves)
    policies_of: dict[tuple[bytes, bytes], list[str]] = {}
    for policy, (x, y) in curves.items():
        policies_of.setdefault((single(x).tobytes(), single(y).tobytes()), []).append(policy)
    traces = []
    for names, width in zip(policies_of.values(), np.linspace(WIDEST, NARROWEST, len(policies_of)), strict=True):
        x, y = curves[names[0]]
        colour, dash = styles[names[0]]
        name = " = ".join(names)
        traces.append(
            Scatter(
                x=single(x),
                y=single(y),
                name="<br>= ".join(names),
                mode="lines",
                line={"color": colour, "dash": dash, "width": round(float(width), 2), "shape": shape},
                hovertemplate=f"{name}{hover}<extra></extra>",
            )
        )
    return figure_of(traces, layout(height, **axes))


def binned_steps(time_s: Floats, values: Floats, edges: Floats) -> Floats:
    """(bins,) the mean of a step function in each bin; it is 0 before its first step and stays as at its last."""
    moments = np.concatenate([[min(edges[0], time_s[0])], time_s, [max(edges[-1], time_s[-1])]])
    before = np.concatenate([[0.0], values])
    total = np.concatenate([[0.0], np.cumsum(before * np.diff(moments))])
    # Steps at one moment are of no length; the last of them is the one that holds.
    mean: Floats = np.diff(np.interp(edges, moments, total)) / np.diff(edges)
    return mean


def gantt(outcome: Outcome, world: World | None, limit: int = BARS) -> tuple[Figure, float]:
    """Who held which GPU when, coloured by the slowdown of the job there (one colour where the world is not given).

    A bar is one job on neighbouring GPUs. Where there are more than `limit`, it shows the time until the next one
    would be too many; that time, in s, is returned beside the figure.
    """
    began, ended, first, height, job, slow = _bars(outcome, world)
    until = outcome.end_s if len(began) <= limit else float(began[limit])
    in_time = np.flatnonzero(began < until) if len(began) > limit else np.arange(len(began))
    began, ended, first, height = began[in_time], np.minimum(ended[in_time], until), first[in_time], height[in_time]
    marker: dict[str, Any] = {"line": {"width": 0.5, "color": "rgba(127,127,127,0.6)"}, "color": SKY}
    slowdown = ""
    if world is not None:
        slowdown = ", slowdown %{customdata[2]:.2f}"
        marker |= {
            "color": single(slow[in_time]),
            "colorscale": SLOWNESS,
            "cmin": float(slow.min(initial=1.0)),
            "cmax": float(max(1.05, np.quantile(slow, 0.99))),
            "colorbar": {"title": {"text": "slowdown"}, "thickness": 12, "len": 0.9},
        }
    bars = Bar(
        orientation="h",
        base=single(began / 3600).tolist(),
        x=single((ended - began) / 3600),
        y=single(first + height / 2 - 0.5),
        width=single(height),
        marker=marker,
        customdata=[
            [_name(outcome, number), int(gpus), round(float(value), 3)]
            for number, gpus, value in zip(job[in_time], height, slow[in_time], strict=True)
        ],
        hovertemplate=f"job %{{customdata[0]}}, %{{customdata[1]}} GPUs here{slowdown}"
        "<br>from hour %{base:,.2f}, for %{x:,.2f} h<extra></extra>",
    )
    figure = figure_of(
        [bars],
        layout(
            440,
            margin={"l": 64, "r": 16, "t": 36, "b": 52},
            barmode="overlay",
            bargap=0,
            showlegend=False,
            xaxis={"title": {"text": "time since the trace began, h"}, "range": [0, until / 3600]},
            yaxis={"title": {"text": "GPU, in the order of the nodes"}, "range": [-0.5, outcome.gpus - 0.5]},
        ),
    )
    return figure, until


def _name(outcome: Outcome, number: int) -> str:
    return outcome.jobs[number].name if number < len(outcome.jobs) else f"(arrival {number - len(outcome.jobs) + 1})"


def _bars(outcome: Outcome, world: World | None) -> tuple[Floats, Floats, Floats, Floats, NDArray[np.int64], Floats]:
    """Begin, end, first GPU, number of neighbouring GPUs, job and slowdown of every bar, by their begin."""
    rows: list[tuple[float, float, int, int, int, float]] = []
    for span in outcome.spans or ():
        slow = _slowdown(outcome, world, span.job, span.gpus)
        gpus = sorted(span.gpus)
        start = 0
        for place in range(1, len(gpus) + 1):
            if place == len(gpus) or gpus[place] != gpus[place - 1] + 1:
                rows.append((span.began_s, span.ended_s, gpus[start], place - start, span.job, slow))
                start = place
    table = np.array(sorted(rows), dtype=np.float64).reshape(-1, 6)
    began, ended, first, height, job, slowdown = table.T
    return began, ended, first, height, job.astype(np.int64), slowdown


def _slowdown(outcome: Outcome, world: World | None, job: int, gpus: Sequence[int]) -> float:
    if world is None or job >= len(outcome.jobs):
        return 1.0
    held = list(gpus)
    scores = world.rates.scores.get(outcome.jobs[job].workload)
    worst = 1.0 if scores is None else float(scores[held].max())
    return worst * (world.rates.locality if len(np.unique(world.fleet.node[held])) > 1 else 1.0)


def gain_by_seed(gains: Sequence[PolicyGain]) -> Figure:
    """What each policy gained over one baseline, or over itself without scores: a row of points, one for each seed, and
    on it the mean with its 90 % interval. Seeds have no order, so nothing joins them."""
    lines = line_of(gain.policy for gain in gains)
    rows = list(range(len(gains)))[::-1]  # the first one is at the top
    traces = []
    for row, gain in zip(rows, gains, strict=True):
        colour, dash = lines[gain.policy]
        symbol, points = "" if dash == "solid" else "-open", len(gain.per_seed)
        traces.append(
            Scatter(
                x=[value for _, value in gain.per_seed],
                y=row + (np.linspace(-0.25, 0.25, points) if points > 1 else np.zeros(1)),
                name=gain.policy,
                mode="markers",
                marker={"color": colour, "symbol": f"circle{symbol}", "size": 6, "opacity": 0.7},
                customdata=[seed for seed, _ in gain.per_seed],
                hovertemplate=f"{gain.policy}, seed %{{customdata}}<br>%{{x:+.1f}} %<extra></extra>",
            )
        )
        bounds = None
        if gain.lower_pct is not None and gain.upper_pct is not None:
            low, high = [gain.mean_pct - gain.lower_pct], [gain.upper_pct - gain.mean_pct]
            bounds = error_bars(low, high, colour, width=6, thickness=2)
        traces.append(
            Scatter(
                x=[gain.mean_pct],
                y=[row],
                error_x=bounds,
                mode="markers",
                marker={"color": colour, "symbol": "diamond", "size": 11},
                hovertemplate=f"{gain.policy}, mean of {gain.n} seeds<br>%{{x:+.2f}} %<extra></extra>",
            )
        )
    return figure_of(
        traces,
        layout(
            90 + 30 * len(gains),
            showlegend=False,
            margin={"l": 64, "r": 16, "t": 24, "b": 52},
            xaxis={"title": {"text": f"gain {gains[0].heading}, %"}, "zeroline": True, "zerolinewidth": 2},
            yaxis=names_axis([gain.policy for gain in gains], rows, automargin=True, ticklabelstandoff=6),
        ),
    )
