"""What telemetry shows, in words: of how many readings a figure is, what is left out, and the newest readings."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from ...analysis.telemetry.bands import Bands
from ...analysis.telemetry.extent import written
from ...analysis.telemetry.lines import Lines
from ...analysis.telemetry.readings import Key, Shown, shown
from ..document import Column, Section, Table
from ..words import duration, estimate, interval_digits, listed, many

Names = Mapping[Key, str]
_NAMES = 4


def lines_text(lines: Lines, names: Names, *, live: bool) -> str:
    """Of what readings the lines of a few GPUs are, and which have none. `live`: whether more readings are added."""
    steps = [line.step_ns for line in lines.lines if line.step_ns]
    counts = [f"n = {lines.readings:,} readings of {many(len(names), 'GPU')}"]
    if steps:
        fast, slow = duration(min(steps) / 1e9), duration(max(steps) / 1e9)
        counts.append(f"one every {fast}" if fast == slow else f"one every {fast} to {slow}")
    text = ", ".join(counts) + (" when this began; what comes since is added." if live else ".")
    if lines.reduced:
        text += f" Of every {duration(lines.width_ns / 1e9)} a line shows the first, lowest, highest and last reading."
    if lines.pruned_ns is not None and lines.pruned_ns > lines.since:
        text += (
            f" Up to {written(lines.pruned_ns)} only minutes are kept: a line joins their means, and strokes go from "
            "the lowest to the highest value."
        )
    if lines.more_spans:
        text += f" {many(lines.more_spans, 'shorter span')} of reasons and marks are not shown."
    for metric in dict.fromkeys(line.metric for line in lines.lines):
        unread = [names[line.key] for line in lines.lines if line.metric == metric and not line.readings]
        if unread:
            whose = "" if len(unread) == len(names) else f" of {listed(unread, _NAMES)}"
            text += f" {shown(metric).title}{whose}: n/a, no reading in this time."
    return text


def bands_text(bands: Bands, names: Names) -> str:
    """Of what readings the bands of many GPUs are, and which GPUs are far from the others."""
    sample = f" that were taken evenly out of {bands.asked:,}" if bands.taken < bands.asked else ""
    text = (
        f"n = {bands.seen:,} of {many(bands.taken, 'GPU')}{sample}: {bands.readings:,} readings. The bands are "
        f"quantiles over the GPUs, of the mean of each GPU in {duration(bands.width_ns / 1e9)}; the lightest goes from "
        "the lowest to the highest single reading."
    )
    if sample:
        text += f" A quantile of these is one of all GPUs within {bands.off_points:.0f} percentage points (95 %)."
    distances: dict[Key, list[str]] = {}
    for band in bands.bands:
        for key, apart in band.far:
            metric = shown(band.metric)
            distances.setdefault(key, []).append(
                estimate(apart, digits=interval_digits(0.0, abs(apart)), signed=True, unit=metric.unit)
            )
    far = "; ".join(f"{names[key]} ({', '.join(texts)})" for key, texts in distances.items())
    return text + (f" Far from the median of the others: {far}." if far else "")


def freshness(at_ns: int, now_ns: int) -> str:
    """How old the newest reading is."""
    return f"The newest reading is of {written(at_ns)} UTC, {duration(max(0, now_ns - at_ns) / 1e9)} ago."


def silence(at_ns: int, now_ns: int) -> str:
    """That no reading came for long, and what may be the reason."""
    return (
        f"No reading came since {written(at_ns)} UTC ({duration(max(0, now_ns - at_ns) / 1e9)} ago). Does whorl "
        "collect still run there? This page goes on by itself when readings come again."
    )


def newest_section(rows: pl.DataFrame, metrics: tuple[str, ...]) -> Section:
    """The newest reading of each GPU: of gauges; a counter alone says nothing. `rows`: of `newest_readings`."""
    gauges = [shown(name) for name in metrics if shown(name).kind not in ("counter", "mask")]
    columns = [Column("GPU", page="gpu"), Column("at (UTC)", "time"), *map(_gauge_column, gauges)]
    cells = [
        [row["gpu"], row["at"], *(_gauge_cell(row[gauge.name], gauge) for gauge in gauges)]
        for row in rows.iter_rows(named=True)
    ]
    return Section("Newest readings", [Table(columns, cells)])


def _gauge_column(gauge: Shown) -> Column:
    if gauge.unit.startswith("GB"):
        return Column(gauge.title, "quantity", unit=gauge.unit[1:], explains=gauge.says)
    return Column(gauge.label, "number", 0, explains=gauge.says)


def _gauge_cell(value: float | None, gauge: Shown) -> float | None:
    if value is None or gauge.unit.startswith("GB"):
        return value
    return value * gauge.factor
