"""What a verdict says in words: the parts of an effect, the kind, the sentence, and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from .verdict import Cause, Kind


class Part(StrEnum):
    """What a part of an effect comes from."""

    LIMIT = "lower power limit"
    CAP = "power cap"
    """Its silicon needs more power for a clock than that of its peers, so the same cap means a lower clock."""
    HEAT = "heat"
    BRAKE = "power brake"
    SLOWDOWN = "hardware slowdown"
    PINNED = "pinned clock"
    UNTOLD = "clock held, reason not recorded"
    MEMORY = "memory"
    MEMORY_CLOCK = "lower memory clock"
    LINK = "link to the host"
    PEER = "link to other GPUs"
    STARVED = "waiting for the host or its input"
    UNEXPLAINED = "unexplained"


_KIND = {
    Part.LIMIT: Kind.LIMITED,
    Part.HEAT: Kind.HOT,
    Part.BRAKE: Kind.BRAKED,
    Part.SLOWDOWN: Kind.SLOWED,
    Part.PINNED: Kind.PINNED,
    Part.UNTOLD: Kind.UNDER_CAP,
    Part.STARVED: Kind.STARVED,
}


def kind_of(main: str) -> Kind:
    """The kind of verdict whose largest part is this one."""
    return _KIND.get(Part(main), Kind.SLOW)


_HEAT = "Clean its heat sink and filters, and check fans, airflow and inlet temperature; then its thermal paste."
_ACTIONS: dict[Kind | tuple[Kind, str], str] = {
    Kind.LIMITED: "Set its power limit to that of its peers: `nvidia-smi -i GPU -pl WATTS`.",
    Kind.BRAKED: "Check the node's power supplies and cables: they assert the external power brake.",
    Kind.SLOWED: "Check its power cables and supplies, then its cooling; if that does not help, ask the vendor.",
    Kind.UNDER_CAP: "Record why its clock is held (`whorl collect`), then check power supplies and cooling.",
    Kind.HOT: _HEAT,
    Kind.PINNED: "Look for a clock that is set by hand (`nvidia-smi -q -d CLOCK`) and reset it: `nvidia-smi -rgc`.",
    Kind.STARVED: "Check the host: its processor clocks, memory, storage and network, and what else runs there.",
    (Kind.SLOW, Part.CAP): "Nothing is broken: give it work that needs less power, or that does not wait for it.",
    (
        Kind.SLOW,
        Part.MEMORY,
    ): "Check its ECC errors and retired or remapped memory rows; if there are many, replace it.",
    (Kind.SLOW, Part.MEMORY_CLOCK): "Look for a memory clock that is set by hand and reset it: `nvidia-smi -rmc`.",
    (Kind.SLOW, Part.LINK): "Check width and generation of its PCIe link (`nvidia-smi -q -d PCI`), and reseat it.",
    (Kind.SLOW, Part.PEER): "Check its NVLinks, how many are up and their errors: `nvidia-smi nvlink -s` and `-e`.",
    Kind.SLOW: "Run the full suite of probes on it and on a peer, to find what is slow.",
    Kind.POWER_HUNGRY: "Give it work that needs less power; check its cooling, as hot silicon leaks more.",
    Kind.UNSTABLE: "Run the probes again for longer, with `whorl collect` beside them, to find what comes and goes.",
    Kind.SLOWER: "Find out what changed then: driver, firmware, place, cooling, settings. If nothing did, run the full "
    "suite of probes on it.",
    Kind.DRIFTING: "Plan its cleaning or repair before it gets worse; check its cooling first.",
    Kind.SENSOR: "Leave its power out of energy accounts; reload the driver or reset the GPU.",
    Kind.MEMORY_ERRORS: "Read its counters of errors, retired pages and remapped rows (`nvidia-smi -q`). Reset it if "
    "one is pending; if errors come again, replace it.",
    Kind.WRONG: "Take it out of service now and run the vendor's diagnostics; results computed on it are suspect.",
    Kind.FAILED: "Read the node's log for its XID errors, reset it and run the probes again.",
    Kind.LOST: "Take the node out of service; check its XID errors, its seating and its power, then reboot it.",
    Kind.FAST: "Nothing to do; see whether its settings differ from those of its peers.",
}


_NODE = "Check the host: its processor clocks, memory, power supplies and links; its GPUs are slow alike."


_COOL = (
    "Check its hot spot, the temperature of its memory and the seating of its cooler: the hardware tells of heat where "
    "the sensor shows none."
)


def action_of(kind: Kind, main: str = "", *, of_node: bool = False, cool: bool = False) -> str:
    """What to do about a kind of verdict, and about its largest part; of one GPU or of those of a node.

    `cool`: its temperature is far below where heat holds a clock.
    """
    if cool and main == Part.HEAT:
        return _COOL
    if of_node and main in (Part.UNEXPLAINED, Part.LINK, Part.PEER, Part.STARVED):
        return _NODE
    return _ACTIONS.get((kind, main)) or _ACTIONS[kind]


def looks_of(
    workload: str,
    causes: Sequence[Cause],
    row: Mapping[str, Any] | None,
    limit_c: float | None,
    memory_errors: Sequence[int] = (),
) -> str:
    """A slow GPU in a sentence without a full stop: its parts, and the figures that tell them.

    `memory_errors`: XIDs.
    """
    effect = sum(one.pct for one in causes)
    said = f"{abs(effect):.1f} % {'slower' if effect >= 0 else 'faster'} in {workload}"
    if len(causes) > 1 or (causes and causes[0].what != Part.UNEXPLAINED):
        said += ": " + ", ".join(f"{one.pct:.1f} {one.what}" for one in causes if abs(one.pct) >= 0.05)
    figures = [] if row is None else list(_figures(row, {one.what for one in causes}, limit_c))
    if memory_errors and any(one.what in (Part.MEMORY, Part.UNEXPLAINED) for one in causes):
        figures.append(f"errors of its memory: XID {', '.join(map(str, memory_errors))}")
    return said + (f" ({'; '.join(figures)})" if figures else "")


def _figures(row: Mapping[str, Any], parts: set[str], limit_c: float | None) -> list[str]:
    """Clock, power, temperature and counters beside those of the peers, where they are known and differ."""
    found = []
    for name, unit in (("clock", "MHz"), ("power", "W")):
        own, peers = row[name], row[f"peers_{name}"]
        if own is not None and peers is not None and abs(own - peers) >= 0.005:
            found.append(f"{math.exp(own):.0f} {unit}, its peers {math.exp(peers):.0f}")
    own, peers = row["temperature"], row["peers_temperature"]
    if own is not None and peers is not None and (Part.HEAT in parts or abs(own - peers) >= 5):
        limit = f", limit {limit_c:.0f}" if limit_c is not None and Part.HEAT in parts else ""
        found.append(f"{own:.0f} °C, its peers {peers:.0f}{limit}")
    for name, part in (("brake", Part.BRAKE), ("heat", Part.HEAT), ("slowed", Part.SLOWDOWN)):
        if part in parts and row[name]:
            found.append(f"{part} for {100 * row[name]:.0f} % of the time")
    return found
