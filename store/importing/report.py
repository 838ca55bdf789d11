"""What an import did: every row accounted for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SHOWN_LINES = 1000  # line numbers kept per reason; the count is always whole


@dataclass
class Counts:
    """What became of the rows of one workload (or of a telemetry stream)."""

    rows: int = 0
    kept: int = 0
    duplicates: int = 0
    refused: int = 0

    def as_dict(self) -> dict[str, int]:
        return {"rows": self.rows, "kept": self.kept, "duplicates": self.duplicates, "refused": self.refused}


@dataclass
class Report:
    """The report on one imported file. Always rows == kept + duplicates + refused."""

    file: str
    format: str
    cluster: str
    sha256: str
    total: Counts
    kind: str = ""  # runs | telemetry | jobs | timelines | node_power
    workloads: dict[str, Counts] = field(default_factory=dict)
    gpus: int = 0
    ranks: int = 0  # of a timeline
    nodes: int = 0  # of the power of nodes
    refusals: dict[str, list[int]] = field(default_factory=dict)  # reason -> lines
    placeholders: dict[str, int] = field(default_factory=dict)  # column -> values turned into NULL
    units: dict[str, dict[str, str]] = field(default_factory=dict)  # column -> {unit, from}
    ignored: list[str] = field(default_factory=list)  # columns that are not stored
    notes: list[str] = field(default_factory=list)
    already: bool = False  # the file had been imported before; nothing was added

    def as_dict(self) -> dict[str, Any]:
        return {
            "file": self.file,
            "format": self.format,
            "cluster": self.cluster,
            "sha256": self.sha256,
            "already_imported": self.already,
            **self.total.as_dict(),
            "gpus": self.gpus,
            "workloads": {name: counts.as_dict() for name, counts in self.workloads.items()},
            "refusals": [
                {"reason": reason, "count": len(lines), "lines": sorted(lines)[:SHOWN_LINES]}
                for reason, lines in self.refusals.items()
            ],
            "placeholders": self.placeholders,
            "units": self.units,
            "ignored_columns": self.ignored,
            "notes": self.notes,
            **({"ranks": self.ranks} if self.kind == "timelines" else {}),
            **({"nodes": self.nodes} if self.kind == "node_power" else {}),
        }
