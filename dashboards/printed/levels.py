"""Tables of the probes with more than one figure: a square wave, a staircase of load, a scan of sizes, a soak."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import TYPE_CHECKING

from ..table import MISSING, Table, number

if TYPE_CHECKING:
    from ...probes.campaign import Plan, Summary
    from ...probes.probe import Probe

_WAVE = (
    ("high W", "power_high", 4),
    ("low W", "power_low", 4),
    ("swing W", "power_swing", 4),
    ("of steady W", "power_swing_steady", 4),
    ("seen %", "swing_seen", 3),
    ("new every ms", "sensor_period", 3),
    ("mean over ms", "sensor_window", 2),
    ("J by power", "energy_by_power", 4),
    ("J by counter", "energy_by_counter", 4),
)
"""Headings of the table of a wave, the figure of each, and its digits."""
_LEAVE = ("energy_by_power", "energy_by_counter", "sensor_window", "sensor_period")
"""Figures that a narrow terminal shows last."""
_POWER_AT = "power_at_"
_FOUND_AT = "found_at_"
_PREFIXES = ("", "Ki", "Mi", "Gi")


def levels(runs: Sequence[tuple[str, Summary]], plan: Plan, *, each: bool) -> Iterable[str | Table]:
    """What the runs of such probes found: a row for each GPU by its name, or else their medians in one row."""
    for probe in plan.probes:
        mine = [(name, one) for name, one in runs if one.probe == probe.name and one.levels]
        if mine:
            title, columns = _columns(probe, plan, [one for _, one in mine])
            sample = "" if probe.kind == "soak" else _sample_size([one for _, one in mine])
            yield _table(f"{title}{sample}", mine, columns, each=each)
            yield ""


def _columns(probe: Probe, plan: Plan, runs: Sequence[Summary]) -> tuple[str, list[tuple[str, str, int]]]:
    """Title, and heading, figure and digits of each column."""
    if probe.kind == "square":
        asked = plan.asked
        title = (
            f"{probe.name}: what the power sensor shows of load for {1000 * asked.period_s * asked.duty:g} ms in every "
            f"{1000 * asked.period_s:g} ms"
        )
        return title, list(_WAVE)
    names = list(dict.fromkeys(name for one in runs for name in one.levels))
    if probe.kind == "soak":
        rates = [name for name in names if name.startswith(_FOUND_AT)]
        title = f"{probe.name}: of GPUs that do one repetition in N wrong, the share that this soak finds, %, by N"
        counted = ("repetitions", "checked_repetitions", 6)
        return title, [counted, *((f"{int(name.removeprefix(_FOUND_AT)):,}", name, 3) for name in rates)]
    if probe.kind == "staircase":
        steps = [name for name in names if name.startswith(_POWER_AT)]
        return f"{probe.name}: W with load on a share of the multiprocessors", [
            (f"{name.removeprefix(_POWER_AT)} %", name, 4) for name in steps
        ]
    figure = probe.figure.rpartition("_at_")[0]
    values = [name for name in names if name.startswith(f"{figure}_at_")]
    unit = next(one.levels[name].unit for one in runs for name in values if name in one.levels)
    scanned = probe.scan[0] if probe.scan else "size"
    sizes = [name.rpartition("_at_")[2] for name in values]
    headings = [size if scanned == "depth" else _size(size) for size in sizes]
    title = f"{probe.name}: {figure.replace('_', ' ')} in {unit} by {scanned}"
    return title, [(heading, name, 4) for heading, name in zip(headings, values, strict=True)]


def _sample_size(runs: Sequence[Summary]) -> str:
    """Sample size and half width of the interval, for the GPU that was measured least.

    A scan has repeats and an interval at each size. Power has readings and no interval.
    """
    sizes = [
        (one, name.removeprefix("repeats_at_")) for one in runs for name in one.levels if name.startswith("repeats_at_")
    ]
    if sizes:
        fewest = min(one.levels[f"repeats_at_{size}"].value for one, size in sizes)
        halves = [half for one, size in sizes if (half := _half_width(one, size)) is not None]
        known = f"; 95 % interval: ± {number(max(halves), 2)} % or less" if halves else ""
        rest = len(sizes) - len(halves)
        unknown = f"; no interval for {rest} of {len(sizes)}" if rest else ""
        return f" (n = {fewest:,.0f} or more repeats{known}{unknown})"
    readings = [one.readings for one in runs if one.readings is not None]
    return f" (n = {min(readings):,} or more readings)" if readings else ""


def _half_width(one: Summary, size: str) -> float | None:
    """Half the 95 % interval of the time at a size, % of the median; None where too few repeats are independent."""
    low, high, middle = (one.levels.get(f"time_{name}_at_{size}") for name in ("low", "high", "median"))
    return None if low is None or high is None or middle is None else 50 * (high.value - low.value) / middle.value


def _table(
    title: str, runs: Sequence[tuple[str, Summary]], columns: Sequence[tuple[str, str, int]], *, each: bool
) -> Table:
    right = tuple(range(1, len(columns) + 1))
    if each:
        rows = [[name, *(_median_text([one], figure, digits) for _, figure, digits in columns)] for name, one in runs]
    else:
        all_of = [one for _, one in runs]
        rows = [[f"median of {len(runs):,}", *(_median_text(all_of, figure, digits) for _, figure, digits in columns)]]
    figures = [figure for _, figure, _ in columns]
    leaves = [1 + figures.index(figure) for figure in _LEAVE if figure in figures]
    return Table(["GPU", *(heading for heading, _, _ in columns)], rows, right, title, leaves=leaves)


def _median_text(runs: Sequence[Summary], figure: str, digits: int) -> str:
    """The median of a figure; one that is averaged over less than the sensor's period is below that."""
    known = [one.levels[figure].value for one in runs if figure in one.levels]
    if not known:
        return MISSING
    value = median(known)
    if figure == "checked_repetitions":
        return f"{value:,.0f}"
    if figure == "sensor_window":
        periods = [one.levels["sensor_period"].value for one in runs if "sensor_period" in one.levels]
        if periods and value <= 2 * median(periods):
            return f"< {number(2 * median(periods), digits)}"
    return number(value, digits)


def _size(digits: str) -> str:
    """A number of bytes with a binary prefix where it is a whole one: '16384' is '16 KiB'."""
    if not digits.isdecimal():
        return digits
    value, power = int(digits), 0
    while value and value % 1024 == 0 and power + 1 < len(_PREFIXES):
        value, power = value // 1024, power + 1
    return f"{value} {_PREFIXES[power]}B"
