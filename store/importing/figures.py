"""Telemetry of a run besides the medians that `runs` has columns for: the highest power, the mean temperature, ...

A file of runs may have a column for each statistic of each metric. Each is kept as a figure of the run in `results`,
named metric and statistic: `power_max`, `sm_clock_mean`, `temperature_p95`. A column is known by the words of its
name, in any order. A further word for a metric or a statistic is added here, and a further metric is one row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .meanings import EXACT, Meaning
from .units import DIFFERENCE, find, split_label

_STATISTICS = {
    "mean": ("mean", "avg", "average"),
    "max": ("max", "maximum", "peak"),
    "min": ("min", "minimum"),
    "median": ("median", "med", "p50"),
    "sd": ("std", "stdev", "stddev", "sd"),
}
_SAID = {"mean": "mean", "max": "highest", "min": "lowest", "median": "median", "sd": "standard deviation of the"}
_WORDS = {word: statistic for statistic, words in _STATISTICS.items() for word in words}
_PERCENTILE = r"(?:p|percentile_?)0?([1-9][0-9]?)|([1-9][0-9]?)th(?:_?(?:percentile|pctl?))?"
_BETWEEN = re.compile(rf"(?:^|_)(?:({'|'.join(_WORDS)})|{_PERCENTILE})(?=_|$)")
_AT_AN_END = re.compile(rf"^({'|'.join(_WORDS)})(?=.)|(?<=.)({'|'.join(_WORDS)})$")
_CEILING = "clocks.max."  # of nvidia-smi: what the clock may be at most, not what it was


@dataclass(frozen=True, slots=True)
class _Metric:
    """What is measured; `words` are the words of a column's name without the statistic, written as one."""

    name: str
    description: str
    dimension: str
    unit: str
    low: float
    high: float
    words: str


_METRICS = (
    _Metric("power", "board power", "power", "W", 0.0, 5e3,
            "power pwr powerdraw gpupower gpupwr powergpu boardpower powerusage watts"),
    _Metric("sm_clock", "SM clock", "clock", "MHz", 0.0, 1e4,
            "smclock smclk smfreq smfrequency clocksm clockssm clockscurrentsm clock clk freq frequency gpuclock "
            "gpuclk gpufreq gpufrequency coreclock corefreq clockcore graphicsclock sclk"),
    _Metric("mem_clock", "memory clock", "clock", "MHz", 0.0, 1e4,
            "memclock memclk memfreq memfrequency memoryclock memoryclk memoryfreq memoryfrequency clocksmem "
            "clocksmemory clockscurrentmemory clockmem mclk"),
    _Metric("temperature", "GPU temperature", "temperature", "C", -40.0, 150.0,
            "temperature temp gputemperature gputemp temperaturegpu tempgpu coretemp coretemperature"),
    _Metric("memory_temperature", "memory temperature", "temperature", "C", -40.0, 150.0,
            "memorytemperature memorytemp memtemperature memtemp temperaturememory temperaturemem hbmtemp "
            "hbmtemperature"),
    _Metric("utilization", "GPU utilization", "share", "%", 0.0, 100.0,
            "utilization utilisation util gpuutilization gpuutilisation gpuutil utilizationgpu smutil"),
    _Metric("memory_utilization", "memory utilization", "share", "%", 0.0, 100.0,
            "memoryutilization memoryutil memutilization memutil utilizationmemory"),
    _Metric("memory_used", "memory used", "memory", "B", 0.0, EXACT,
            "memoryused memused usedmemory memoryusage memusage"),
    _Metric("fan_speed", "fan speed", "share", "%", 0.0, 200.0, "fanspeed fan"),
    _Metric("energy_total", "energy of the whole run", "energy", "J", 0.0, 1e12,
            "energy totalenergy energytotal gpuenergy energyconsumed energyconsumption"),
    _Metric("rate", "floating-point operations per second", "arithmetic", "GFLOP/s", 0.0, 1e9, "flops"),
    _Metric("operation_rate", "operations per second", "operations", "Gop/s", 0.0, 1e9, ""),
    _Metric("bandwidth", "bytes per second", "rate", "GB/s", 0.0, 1e6, "bandwidth"),
    _Metric("latency", "latency", "time", "ns", 0.0, 1e15, ""),
    _Metric("wrong_elements", "wrong elements of the result", "", "", 0.0, EXACT, ""),
)  # fmt: skip
_BY_NAME = {metric.name: metric for metric in _METRICS}
_BY_WORDS = {words: metric.name for metric in _METRICS for words in metric.words.split()}
_STORED = {"C": "degC"}  # as the tables write a unit

_OWN_COLUMN = {"power", "sm_clock", "mem_clock", "temperature"}  # without a statistic they are the medians in `runs`

EXAMPLE = "power_max, sm_clock_mean or temperature_p95"


def named(name: str) -> Meaning | None:
    """The figure called `name`: a metric, or a metric and a statistic, such as `power_max` and `sm_clock_p95`."""
    metric, _, statistic = (name, "", "") if name in _BY_NAME else name.rpartition("_")
    is_statistic = not statistic or statistic in _STATISTICS or re.fullmatch("p[1-9][0-9]?", statistic)
    return _meaning(metric, statistic) if is_statistic else None


def of_column(name: str) -> Meaning | None:
    """The figure that a column holds by its name, without the unit in brackets or behind an underscore."""
    base = split_label(name)[0]
    if base.lower().startswith(_CEILING):
        return None
    figure = _of_words(base)
    before, _, last = base.rpartition("_")
    if figure is None and before and (short := _of_words(before)) is not None:
        return short if find(last, short.dimension) is not None else None
    return figure


def unit(meaning: Meaning) -> str:
    """The unit of a figure as `results` has it."""
    return _STORED.get(meaning.unit, meaning.unit)


def _of_words(base: str) -> Meaning | None:
    apart = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", base)  # maxPower
    text = re.sub("[^a-z0-9]+", "_", apart.lower()).strip("_")
    match = _BETWEEN.search(text)
    if match is not None:
        word, *percentile = match.groups()
        number = next(filter(None, percentile), None)
        statistic = _WORDS[word] if word else "median" if number == "50" else f"p{number}"
    else:
        text = text.replace("_", "")
        match = None if text in _BY_WORDS else _AT_AN_END.search(text)  # maxpower
        statistic = "" if match is None else _WORDS[match[1] or match[2]]
    words = text if match is None else text[: match.start()] + text[match.end() :]
    return _meaning(_BY_WORDS.get(words.replace("_", ""), ""), statistic)


def _meaning(metric_name: str, statistic: str) -> Meaning | None:
    metric = _BY_NAME.get(metric_name)
    if metric is None or (not statistic and metric_name in _OWN_COLUMN):
        return None
    name = f"{metric.name}_{statistic}" if statistic else metric.name
    if statistic == "sd":
        low, dimension = 0.0, metric.dimension.replace("temperature", DIFFERENCE)
    else:
        low, dimension = metric.low, metric.dimension
    phrase = _SAID.get(statistic, f"percentile {statistic[1:]} of the" if statistic else "")
    description = f"{phrase} {metric.description}".strip()
    return Meaning(name, "number", description, dimension=dimension, unit=metric.unit, low=low, high=metric.high)
