"""The power of nodes: readings of meters, one a row, as rows of `node_power`; and what tools say of it: ipmitool's
text, the JSON of a BMC's Redfish, pages of exporters.

The node is what the file says, as pdsh writes it in front of a line or Prometheus in a label, else --node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from ...errors import InputError
from ..exposition import gpus
from ..node_power import DCMI
from ..schema import NODE_POWER
from ..vocabulary import PowerMeter, PowerOf
from . import identity
from .content import LINE, Sheet
from .lines import written
from .meanings import Bound
from .rows import Rows, Value, finite
from .times import Times, times
from .tools import exporter
from .tools.exporter import PageTimes
from .values import numbers, parsed, stated

if TYPE_CHECKING:
    from ..store import Store

_HOST = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
_BMC = r"[-.](?i:bmc|ipmi|oob|mgmt|ilo|idrac|xcc)$|\..*$"  # behind the host, in the name of a BMC or a full name
_CODES = {"source": PowerMeter, "covers": PowerOf}
_USUAL = {"source": PowerMeter.PDU, "covers": PowerOf.NODE_WALL}


@dataclass(frozen=True, slots=True)
class PowerSeries:
    """What a series of an exporter is the power or the energy of.

    `unit` is W of a power, J of a counter. `part` are the labels that may say which of several it is. `only` are labels
    that a series must have, each with a pattern of its values.
    """

    source: PowerMeter
    covers: PowerOf
    unit: str = "W"
    part: tuple[str, ...] = ()
    only: tuple[tuple[str, str], ...] = ()


_RAPL = {"source": PowerMeter.RAPL, "unit": "J", "part": ("path", "index")}
_SUPPLY = ("power_supply_id", "power_supply", "id")
# ipmi_exporter; node_exporter, whose hwmon has GPUs and batteries too; idrac_exporter, which also has the controls of
# parts, of which the first is the system's; redfish_exporter.
SERIES: dict[str, PowerSeries] = {
    "ipmi_dcmi_power_consumption_watts": PowerSeries(PowerMeter.IPMI, PowerOf.NODE),
    "node_rapl_package_joules_total": PowerSeries(covers=PowerOf.CPU, **_RAPL),  # type: ignore[arg-type]
    "node_rapl_dram_joules_total": PowerSeries(covers=PowerOf.DRAM, **_RAPL),  # type: ignore[arg-type]
    "node_rapl_psys_joules_total": PowerSeries(covers=PowerOf.PLATFORM, **_RAPL),  # type: ignore[arg-type]
    "node_hwmon_power_average_watt": PowerSeries(
        PowerMeter.HWMON, PowerOf.NODE, only=(("chip", "(?i).*(acpi000d|power_meter).*"),)
    ),
    "idrac_power_control_consumed_watts": PowerSeries(PowerMeter.REDFISH, PowerOf.NODE, only=(("id", "0"),)),
    "idrac_power_supply_input_watts": PowerSeries(PowerMeter.REDFISH, PowerOf.NODE_WALL, part=_SUPPLY),
    "redfish_chassis_power_average_consumed_watts": PowerSeries(PowerMeter.REDFISH, PowerOf.NODE),
    "redfish_chassis_power_powersupply_power_input_watts": PowerSeries(
        PowerMeter.REDFISH, PowerOf.NODE_WALL, part=_SUPPLY
    ),
}
"""By name of the series."""


def parse(sheet: Sheet) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The readings of a sheet (columns of `node_power`, and LINE), and no events.

    Impossible rows are refused in the sheet. Raises InputError.
    """
    bound = sheet.bound
    identity.drop_duplicates(sheet)
    times(sheet, bound["timestamp"], minus_one=False, stream=False)
    measured = sheet.metrics
    numbers(sheet, measured, minus_one=False)
    texts = [_text(bound, name) for name in ("part", *_CODES)]
    sheet.frame = sheet.frame.with_columns(_text(bound, "node").fill_null(pl.lit(sheet.options.node)), *texts)
    _as_the_store_calls_them(sheet)
    filled = pl.col("=source").fill_null(_USUAL["source"].value), pl.col("=covers").fill_null(_USUAL["covers"].value)
    sheet.frame = sheet.frame.with_columns(filled)
    sheet.refuse(
        (pl.col("=timestamp").is_null(), f"{bound['timestamp'].column} is missing"),
        (pl.col("=node").is_null(), "it names no node: say it with --node"),
        (~pl.col("=node").str.contains(_HOST), "its node is not the name of one host: an outlet of several is of none"),
        *((~pl.col(f"={name}").is_in(list(codes)), f"its {name} is none of {', '.join(codes)}")
          for name, codes in _CODES.items()),
        (pl.all_horizontal(pl.col(parsed(b.meaning)).is_null() for b in measured), "it has neither power nor energy"),
    )  # fmt: skip
    frame = sheet.frame.select(
        LINE,
        pl.lit(sheet.options.cluster).alias("cluster"),
        pl.col("=timestamp").alias("ts"),
        *(pl.col(f"={name}").alias(name) for name in ("node", "part", *_CODES)),
        *(pl.col(parsed(b.meaning)).round().cast(pl.Int64).alias(b.meaning.column) for b in measured),
    )
    first = frame.select(pl.struct(NODE_POWER.key).is_first_distinct()).to_series()
    again = frame.filter(~first)[LINE].to_list()
    sheet.refused.add("it is a second reading of the same meter at the same time", again)
    return frame.filter(first), pl.DataFrame(schema={LINE: pl.Int64})


def unseen(store: Store, frame: pl.DataFrame) -> pl.DataFrame:
    """The readings of which the store has none of the same meter at the same time."""
    near = pl.col("node").is_in(frame["node"].unique().implode()) & pl.col("ts").is_between(
        frame["ts"].min(), frame["ts"].max()
    )
    stored = store.collect(store.scan(NODE_POWER.name).filter(near).select(NODE_POWER.key))
    return frame.join(stored, on=list(NODE_POWER.key), how="anti", nulls_equal=True, maintain_order="left")


def _text(bound: dict[str, Bound], name: str) -> pl.Expr:
    """The texts of a column, null where one stands for "unknown" and where there is no such column."""
    if name not in bound:
        return pl.lit(None, pl.String).alias(f"={name}")
    return stated(bound[name].column).str.strip_chars().alias(f"={name}")


def _as_the_store_calls_them(sheet: Sheet) -> None:
    """Take `n1-bmc` or `n1.example.org` for n1 where the store has GPUs on a node n1, and on none of the other name."""
    nodes = sheet.options.fleet()["node"].drop_nulls().unique()
    node, host = pl.col("=node"), pl.col("=node").str.replace(_BMC, "")
    is_longer = ~node.is_in(nodes.implode()) & host.is_in(nodes.implode()) & (host != node)
    names = sheet.frame.filter(is_longer)["=node"].unique(maintain_order=True)
    if len(names):
        sheet.notes.append(f"{len(names)} names of nodes are those of the store with more behind them, as {names[0]}")
        sheet.frame = sheet.frame.with_columns(pl.when(is_longer).then(host).otherwise(node).alias("=node"))


# -- what tools print -----------------------------------------------------------------------------------------

IPMITOOL, REDFISH, EXPORTER = "ipmitool dcmi", "Redfish", "prometheus of nodes"

_STATE = re.compile(r"Power reading state is *:\s*(\w+)")
_OF_GPUS = re.compile(r'^(?:# (?:HELP|TYPE) )?(?:DCGM|nvidia)_|"__name__": *"(?:DCGM|nvidia)', re.M | re.I)
_OF_NODES = re.compile(
    r'^(?:# (?:HELP|TYPE) )?(?:node|ipmi|idrac|redfish)_|"__name__": *"(?:node|ipmi|idrac|redfish)_', re.M
)
_JSON = re.compile(r"\A\s*[\[{]")
_POWER = re.compile(r'"PowerControl"\s*:|"PowerWatts"\s*:|"EnergykWh"\s*:')
_NOT_A_NODE = re.compile(r"/(?:Processors|Memory|PCIeDevices|Drives|GraphicsControllers)/")
_OF_A_NODE = (None, "", "Chassis", "SystemBoard", "Intake")  # PhysicalContext of a control that is the node's
_POWER_W, _ENERGY_J = "node_power [W]", "node_energy [J]"


def fits_ipmitool(head: str) -> object:
    """Whether a text has what `ipmitool dcmi power reading` prints."""
    return DCMI.search(head)


def read_ipmitool(content: str, rows: Rows) -> None:
    """Add a row for each reading. A line with a time in front of it says when it was, as `date` prints it."""
    times, sweep = Times(rows), 0
    watts: dict[int, tuple[float, str | None]] = {}  # by line, with the time
    for line, words in written(content):
        reading, state = DCMI.search(words), _STATE.search(words)
        if reading is not None:
            watts[line] = float(reading[1]), times.of("", sweep)
            sweep += 1
        elif state is not None and state[1] == "deactivated" and watts:
            watts |= {max(watts): (0.0, None)}
        else:
            times.begins(words, sweep)
    for line, (power_w, stamp) in watts.items():
        _add(line, rows, SERIES["ipmi_dcmi_power_consumption_watts"], power_w, timestamp=stamp)


def _add(line: int, rows: Rows, series: PowerSeries, value: float | None, **texts: Value) -> None:
    if value is None or value < 0 or (value == 0 and series.unit == "W"):
        rows.refuse(line, "it says no power, or 0 W, as a BMC does that does not measure it")
        return
    label = _POWER_W if series.unit == "W" else _ENERGY_J
    rows.add(line, {"source": series.source, "covers": series.covers, **texts, label: value})


def fits_redfish(head: str) -> object:
    """Whether a text begins as the JSON of a BMC's Power or EnvironmentMetrics."""
    return _JSON.match(head) and _POWER.search(head)


def read_redfish(content: str, rows: Rows) -> None:
    """Add the rows of each resource; several follow each other, or are a list.

    When and where one was read say the keys `timestamp` and `node`, which whoever saves them adds, else --at (and
    --every) and --node. Raises InputError for what is no JSON.
    """
    times = Times(rows)
    for sweep, (line, resource) in enumerate(rows.objects(content)):
        saved_at = resource.get("timestamp")
        stamp = times.of("" if saved_at is None else str(saved_at), sweep)
        texts: dict[str, Value] = {"timestamp": stamp, "node": str(resource.get("node") or "")}
        if _NOT_A_NODE.search(str(resource.get("@odata.id", ""))):
            rows.refuse(line, "it is of a part of the node")
            continue
        before = len(rows)
        for covers, part, values in _of_resource(resource, rows):
            rows.add(line, {"source": PowerMeter.REDFISH, "covers": covers, "part": part, **texts, **values})
        if len(rows) == before:
            rows.refuse(line, "it has no power of a node")


def _of_resource(resource: dict[str, Any], rows: Rows) -> Iterator[tuple[PowerOf, str | None, dict[str, float]]]:
    """What a Power or an EnvironmentMetrics says of the node: what it is of, the part, and the values by label."""
    controls = _records(resource.get("PowerControl"))
    of_node = [control for control in controls if control.get("PhysicalContext") in _OF_A_NODE][:1]
    if len(controls) > 1:
        rows.note("of several controls of power, the first that is of the whole node is stored")
    excerpts = [(_POWER_W, 1.0, resource.get("PowerWatts")), (_ENERGY_J, 3.6e6, resource.get("EnergykWh"))]
    readings = [
        (label, factor, excerpt.get("Reading")) for label, factor, excerpt in excerpts if isinstance(excerpt, dict)
    ]
    readings += [(_POWER_W, 1.0, control.get("PowerConsumedWatts")) for control in of_node]
    numbers = {label: factor * number for label, factor, reading in readings if (number := finite(reading))}
    if numbers:
        yield PowerOf.NODE, None, numbers
    supplies = [supply for supply in _records(resource.get("PowerSupplies")) if not _is_absent(supply.get("Status"))]
    inputs_w = [finite(supply.get("PowerInputWatts")) for supply in supplies]
    for number, (supply, input_w) in enumerate(zip(supplies, inputs_w, strict=True)):
        if input_w is not None and None not in inputs_w:  # else their sum is not the node
            yield PowerOf.NODE_WALL, str(supply.get("MemberId") or supply.get("Name") or number), {_POWER_W: input_w}


def _records(value: object) -> list[dict[str, Any]]:
    return [record for record in value if isinstance(record, dict)] if isinstance(value, list) else []


def _is_absent(status: object) -> bool:
    return isinstance(status, dict) and status.get("State") == "Absent"


def fits_page(head: str) -> bool:
    """Whether a page, or an answer of a Prometheus, is of exporters of nodes, and not of GPUs."""
    return _OF_NODES.search(head) is not None and _OF_GPUS.search(head) is None


def read_page(page: str, rows: Rows) -> None:
    """Add a row for each series of a node's power, also where the page is an answer of a Prometheus.

    Raises InputError where there is none.
    """
    if exporter.ANSWER.match(page):
        page = exporter.page_of(page, rows)
    page_times, unstored = PageTimes(rows), set[str]()
    chips: set[str | None] = set()
    for line in exporter.samples(page, rows, page_times):
        if line.value is None:
            continue
        name, labels = line.series.name, line.series.labels
        if name == "node_hwmon_chip_names" and labels.get("chip_name") == "power_meter":
            chips.add(labels.get("chip"))
        series = SERIES.get(name)
        if series is None:
            continue
        if labels.get("chip") not in chips and not all(
            re.fullmatch(pattern, labels.get(label, "")) for label, pattern in series.only
        ):
            unstored.add(name)
            continue
        part = next((labels[label].rpartition("/")[2] for label in series.part if labels.get(label)), None)
        stamp = exporter.stamp_text(page_times.of(line))
        _add(line.line, rows, series, line.value, part=part, node=gpus.described(labels).get("node"), timestamp=stamp)
    if unstored:
        rows.note(f"some series are of no whole node, and are not stored: {', '.join(sorted(unstored))}")
    if not len(rows) and not unstored:
        why = f"no metric of GPUs and none of a node's power ({', '.join(list(SERIES)[:2])}, ...) is on the page"
        raise InputError(f"{rows.file}: {why}: nothing to import")
