"""How tools spell the power of a node: the text of ipmitool, and the series of exporters."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .vocabulary import PowerMeter, PowerOf

DCMI = re.compile(r"(?:Instantaneous power reading|Current Power) *:[ \t]*([0-9]+)[ \t]*Watts")
"""The power in what `ipmitool dcmi power reading` and FreeIPMI's `ipmi-dcmi` print."""
_INACTIVE = re.compile(r"Power reading state is *:[ \t]*deactivated")


def dcmi_watts(text: str) -> int | None:
    """The power in one answer of `ipmitool dcmi power reading`, W.

    None where there is no reading: measuring is deactivated, or the BMC says 0 W, which no running node draws.
    """
    match = DCMI.search(text)
    return None if match is None or _INACTIVE.search(text) else int(match[1]) or None


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
