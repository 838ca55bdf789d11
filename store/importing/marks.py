"""What is wrong with the readings of a stream: sensors that are stuck or read 0 W, a clock that was set back.

Rows keep their values; `telemetry.quality` has a mark, and an event says it in a sentence.
"""

from __future__ import annotations

import polars as pl

from ..metrics import BOARD_POWER, UNTRUSTED_POWER
from ..vocabulary import EventKind
from .content import LINE
from .values import Remarks

_STUCK, _ZERO = UNTRUSTED_POWER

# A power sensor is called stuck where its reading stays the same over this many readings and seconds while
# utilisation or temperature moves this much. (A sensor period is at most about 0.1 s.)
_READINGS, _SECONDS, _MOVED_KELVIN, _MOVED_PERCENT = 100, 10, 3, 20
_COARSE_MW = 1000  # readings in whole watts may well stay the same while a board warms up
_UNSORTED = 20  # with more than one step back in so many rows, a file is not in the order of time

_SCHEMA = pl.Schema(
    {
        "ts": pl.Datetime("us"),
        "gpu": pl.String(),
        "kind": pl.String(),
        "quality": pl.String(),
        "value": pl.Float64(),
        "n": pl.Int64(),
        "duration_ns": pl.Int64(),
        "detail": pl.String(),
    }
)


def marked(frame: pl.DataFrame, earlier: pl.DataFrame, remarks: Remarks) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The readings with `quality`, and events, together with `earlier` ones."""
    events = [earlier]
    powers = [name for name in BOARD_POWER if name in frame.columns]
    marks = pl.DataFrame(schema={LINE: pl.Int64, "quality": pl.String})
    if powers and frame.height:
        power = frame.with_columns(pl.coalesce(powers).alias("power")).drop_nulls("power").sort("gpu", "ts")
        for sensor_events, lines, mark in ((*_zero(power), _ZERO), (*_stuck(power), _STUCK)):
            events.append(sensor_events)
            marks = pl.concat([marks, lines.select(LINE, pl.lit(mark).alias("quality"))])
    all_events = pl.concat([_SCHEMA.to_frame(), *events], how="diagonal_relaxed").select(_SCHEMA.names()).cast(_SCHEMA)
    remarks.notes.extend(f"{gpu}: {text}" for gpu, text in all_events.select("gpu", "detail").iter_rows())
    return frame.join(marks, on=LINE, how="left", maintain_order="left"), all_events


def _zero(power: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Readings of 0 W, which no GPU draws: an event for each GPU, and the rows."""
    rows = power.filter(pl.col("power") == 0)
    by_gpu = rows.group_by("gpu", maintain_order=True).agg(
        pl.col("ts").min(), pl.len().alias("n"), _span().alias("duration_ns")
    )
    sentence = (
        "{} power readings are 0 W, which no GPU draws: the sensor does not work, so they must not count as energy"
    )
    return _event(by_gpu, EventKind.ZERO_POWER, _ZERO, pl.format(sentence, "n")), rows


def _stuck(power: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Spans in which the power reading stays the same while what it depends on moves: events, and the rows.

    If the reading moves at other times, a falling temperature proves nothing: an idle GPU cools at constant power. Of
    readings in whole watts only utilisation counts.
    """
    changed = (pl.col("power") != pl.col("power").shift()) | (pl.col("gpu") != pl.col("gpu").shift())
    power = power.with_columns(changed.fill_null(True).cum_sum().alias("run"))
    runs = power["run"].rle().struct.unnest()
    long = power.filter(pl.col("run").is_in(runs.filter(pl.col("len") >= _READINGS)["value"].implode()))
    constant, coarse = pl.col("power").n_unique() == 1, (pl.col("power") % _COARSE_MW == 0).all()
    sensors = power.filter(pl.col("gpu").is_in(long["gpu"].unique().implode()))
    sensors = sensors.group_by("gpu").agg(constant.alias("constant"), coarse.alias("coarse"))
    power = long.join(sensors, on="gpu", maintain_order="left")
    moved = [pl.lit(False)]
    if "utilization" in power.columns:
        share = pl.col("utilization")
        moved.append(share.max() - share.min() >= _MOVED_PERCENT)
    if "temperature_c" in power.columns:
        heat = pl.col("temperature_c")
        ranged, rose = heat - heat.min().over("run"), heat - heat.cum_min().over("run")
        power = power.with_columns(pl.when("constant").then(ranged).when(~pl.col("coarse")).then(rose).alias("moved_k"))
        moved.append(pl.col("moved_k").max() >= _MOVED_KELVIN)
    spans = power.group_by("run", maintain_order=True).agg(
        pl.col("gpu").first(),
        pl.col("ts").min(),
        pl.col("power").first(),
        pl.len().alias("readings"),
        _span().alias("duration_ns"),
        pl.any_horizontal(*(condition.fill_null(False) for condition in moved)).alias("moved"),
    )
    spans = spans.filter(pl.col("moved") & (pl.col("power") > 0) & (pl.col("duration_ns") >= _SECONDS * 10**9))
    seconds, watts = pl.col("duration_ns") // 10**9, pl.col("power") / 1000
    sentence = (
        "power sensor stuck: {} power readings over {} s are {} W while temperature or utilisation changed: do not use "
        "them for energy"
    )
    spans = spans.with_columns(pl.col("power").cast(pl.Float64).alias("value"))
    events = _event(spans, EventKind.STUCK_SENSOR, _STUCK, pl.format(sentence, "readings", seconds, watts))
    return events, power.join(spans, on="run", how="semi")


def set_back(frame: pl.DataFrame) -> pl.DataFrame:
    """Where the time stamps of a GPU go back into time that the stream has already: events. In the order of the file.

    Logs in the wrong order do not overlap, and a file in no order at all says nothing of a clock.
    """
    ts = pl.col("ts")
    steps = frame.select(LINE, "gpu", "ts", ts.diff().over("gpu").alias("step"))
    back = pl.col("step") < pl.duration(nanoseconds=0)
    number = steps.select(back.sum()).item()
    if not number or number * _UNSORTED > steps.height:
        return pl.DataFrame(schema={"ts": pl.Datetime("us")})
    forward = pl.col("step").filter(pl.col("step") > pl.duration(nanoseconds=0)).median().over("gpu")
    parts = steps.with_columns(forward.alias("usual"), back.fill_null(False).cum_sum().over("gpu").alias("part"))
    first = [pl.col(c).first() for c in (LINE, "step", "usual")]
    parts = parts.group_by("gpu", "part", maintain_order=True).agg(ts.min(), ts.max().alias("end"), *first)
    parts = parts.with_columns(ts.shift().over("gpu").alias("before"), pl.col("end").shift().over("gpu").alias("until"))
    steps_back = parts.filter((ts < pl.col("until")) & (pl.col("end") > pl.col("before")))
    steps_back = steps_back.with_columns((pl.col("step") - pl.col("usual")).dt.total_nanoseconds().alias("duration_ns"))
    sentence = (
        "the time stamps go back by {} s (line {}): the clock was set, or summer time ended (--set time-zone=ZONE "
        "reads that right); readings of two times are mixed there"
    )
    seconds = (pl.col("duration_ns") / -1e9).round(3)
    return _event(steps_back, EventKind.CLOCK_STEP, None, pl.format(sentence, seconds, LINE))


def _span() -> pl.Expr:
    return (pl.col("ts").max() - pl.col("ts").min()).dt.total_nanoseconds()


def _event(rows: pl.DataFrame, kind: EventKind, mark: str | None, detail: pl.Expr) -> pl.DataFrame:
    return rows.with_columns(
        pl.lit(kind.value).alias("kind"), pl.lit(mark, pl.String).alias("quality"), detail.alias("detail")
    )
