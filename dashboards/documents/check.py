"""What a check of a node came to, and its forms: a document for people, a line for Nagios and its kin, JUnit and JSON.

Nodes that only measure print it: it imports nothing that they lack.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

from ..document import Column, Document, Part, Table, TableColumns
from ..words import estimate, many, number, printable, with_interval

if TYPE_CHECKING:
    from ...analysis.verdicts.watch import Level

_FINE = "nothing against it"
_NAMED_GPUS = 3
"""So many GPUs that are not OK stand in the line for Nagios."""


class CheckStatus(IntEnum):
    """The status of a GPU or a node as monitoring tools number it; also the exit status."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3

    @property
    def weight(self) -> int:
        """What counts when several are put together: an alarm more than not knowing, that more than OK."""
        return (0, 2, 3, 1)[self]


@dataclass(frozen=True)
class CheckLimits:
    """Per cent that a GPU takes longer than its own level."""

    warning_pct: float = 3.0
    critical_pct: float = 10.0


@dataclass(frozen=True, slots=True)
class ProbeTime:
    """The time of a probe that was just run; slower is positive, None where it is unknown."""

    workload: str
    time_ms: float | None
    own_pct: float | None = None
    """Beside the GPU's own level."""
    own_low_pct: float | None = None
    own_high_pct: float | None = None
    """95 % interval of its own level in another sitting, beside its middle."""
    peers_pct: float | None = None
    """Beside the median of its peers."""
    peers: int | None = None

    @classmethod
    def beside(cls, level: Level | None, workload: str, time_ms: float) -> ProbeTime:
        """The time beside the level of the GPU and of its peers."""

        def excess_pct(value_ms: float | None, reference_ms: float | None) -> float | None:
            return 100 * (value_ms / reference_ms - 1) if value_ms is not None and reference_ms else None

        if level is None:
            return cls(workload, time_ms)
        own_pct, low_pct, high_pct = (excess_pct(ms, level.own_ms) for ms in (time_ms, level.low_ms, level.high_ms))
        peers_pct = excess_pct(time_ms, level.peers_ms)
        return cls(workload, time_ms, own_pct, low_pct, high_pct, peers_pct, level.peers)

    def __str__(self) -> str:
        if self.own_pct is None:
            beside = "" if self.peers_pct is None else " of its peers"
            return f"{self.workload} {estimate(self.peers_pct, signed=True, unit='%')}{beside}"
        own = with_interval(self.own_pct, self.own_low_pct, self.own_high_pct, signed=True, unit="%")
        return f"{self.workload} {own}"


@dataclass
class GpuCheck:
    """What the check of one GPU came to."""

    gpu: str
    """Its UUID; "" where the driver does not tell it."""
    name: str
    status: CheckStatus = CheckStatus.OK
    says: list[str] = field(default_factory=list)
    """Sentences without a full stop, what is wrong first."""
    now: list[ProbeTime] = field(default_factory=list)

    def note(self, status: CheckStatus, sentence: str) -> None:
        """Add a sentence; the status is that of the worst."""
        if status.weight > self.status.weight:
            self.status = status
            self.says.insert(0, sentence)
        else:
            self.says.append(sentence)

    def note_time(self, probe: ProbeTime, limits: CheckLimits) -> bool:
        """Add a time, and note that it is too long; False where there is nothing to compare it with."""
        self.now.append(probe)
        excess_pct, high_pct, reference = probe.own_pct, probe.own_high_pct, "of its own level"
        if excess_pct is None:
            excess_pct, high_pct, reference = probe.peers_pct, None, "of its peers' median"
        if excess_pct is None:
            return False
        if excess_pct >= limits.warning_pct and (high_pct is None or excess_pct > high_pct):
            status = CheckStatus.CRITICAL if excess_pct >= limits.critical_pct else CheckStatus.WARNING
            reach = "how far its sittings reach is not known"
            reach = reach if high_pct is None else f"its sittings reach {high_pct:+.1f} %"
            self.note(status, f"{probe.workload} {excess_pct:+.1f} % {reference} ({reach})")
        return True


@dataclass
class NodeCheck:
    """What the check of a node came to."""

    node: str
    limits: CheckLimits = CheckLimits()
    gpus: list[GpuCheck] = field(default_factory=list)
    says: list[str] = field(default_factory=list)
    """About the check itself."""
    probed: bool = False
    seconds: float = 0.0
    failed: bool = False
    """Whether the check itself could not be done."""

    @property
    def status(self) -> CheckStatus:
        """That of the worst GPU; unknown where the check could not be done and no GPU is known to be bad."""
        statuses = [gpu.status for gpu in self.gpus]
        if self.failed or not statuses:
            statuses.append(CheckStatus.UNKNOWN)
        return max(statuses, key=lambda status: status.weight)

    def mapping(self) -> dict[str, Any]:
        """The answer as `whorl.check/1`."""
        return {
            "schema": "whorl.check/1",
            "node": self.node,
            "status": self.status.name.lower(),
            "exit_status": int(self.status),
            "probed": self.probed,
            "seconds": round(self.seconds, 3),
            "says": self.says,
            "gpus": [asdict(gpu) | {"status": gpu.status.name.lower()} for gpu in self.gpus],
        }

    def document(self) -> Document:
        """For people: the status and why, a row a GPU, then what is known of the check itself."""
        parts: list[Part] = [self._answer()]
        columns: TableColumns = [
            ("GPU", "name"),
            ("status", lambda gpu: gpu.status.name.lower()),
            (
                Column("now, beside its own level", "sentence", drops=1),
                lambda gpu: ", ".join(map(str, gpu.now)) or None,
            ),
            (Column("why", "sentence"), lambda gpu: "; ".join(gpu.says) or _FINE),
        ]
        if self.gpus:
            parts.append(Table.of(self.gpus, columns))
        if any(probe.own_low_pct is not None for gpu in self.gpus for probe in gpu.now):
            parts.append("positive is slower; [..]: where its level in another sitting lies, in 95 of 100 cases")
        return Document(f"Check of {self.node}", [*parts, *self.says])

    def _answer(self) -> str:
        alarms = [gpu for gpu in self.gpus if gpu.status in (CheckStatus.CRITICAL, CheckStatus.WARNING)]
        worst = max(alarms, key=lambda gpu: gpu.status.weight, default=None)
        why = "" if worst is None else f": {worst.name}, {worst.says[0]}"
        if len(alarms) > 1:
            why += f"; {many(len(alarms) - 1, 'more GPU')} below"
        return f"{self.node}: {self.status.name}{'' if self.probed else ' (no probe was run)'}{why}"

    def nagios(self) -> str:
        """One line with performance data: how much longer each probe takes than the GPU's own level, in %."""
        worst_first = sorted(self.gpus, key=lambda gpu: -gpu.status.weight)
        not_ok = [f"{gpu.name}: {'; '.join(gpu.says)}" for gpu in worst_first if gpu.status is not CheckStatus.OK]
        sentences = not_ok[:_NAMED_GPUS]
        if len(not_ok) > _NAMED_GPUS:
            sentences.append(f"{len(not_ok) - _NAMED_GPUS} more")
        sentences += self.says if self.failed else []
        text = "; ".join(sentences or [f"{len(self.gpus)} GPUs, nothing against them"]).replace("\n", " ")
        limits = f"{self.limits.warning_pct:g};{self.limits.critical_pct:g}"
        figures = [
            f"'{gpu.name} {probe.workload}'={probe.own_pct:.2f}%;{limits}"
            for gpu in self.gpus
            for probe in gpu.now
            if probe.own_pct is not None
        ]
        figures.append(f"time={self.seconds:.1f}s")
        text, performance = text.replace("|", "/"), " ".join(figures).replace("|", "/")
        return printable(f"WHORL {self.status.name} - {text} | {performance}")

    def junit(self) -> str:
        """A test suite in XML: a case a GPU; a warning or worse is a failure, "unknown" is skipped."""
        suite = ET.Element("testsuite", name="whorl check", hostname=self.node)
        for gpu in self.gpus:
            case = ET.SubElement(suite, "testcase", classname="whorl.check", name=gpu.name)
            message = "; ".join(gpu.says)
            if gpu.status in (CheckStatus.WARNING, CheckStatus.CRITICAL):
                ET.SubElement(case, "failure", type=gpu.status.name.lower(), message=message)
            elif gpu.status is CheckStatus.UNKNOWN:
                ET.SubElement(case, "skipped", message=message)
            figures = ET.SubElement(case, "properties") if gpu.now else case
            for probe in gpu.now:
                ET.SubElement(figures, "property", name=f"{probe.workload} ms", value=number(probe.time_ms))
        if self.failed or not self.gpus:
            case = ET.SubElement(suite, "testcase", classname="whorl.check", name="check")
            ET.SubElement(case, "skipped", message="; ".join(self.says) or "there are no GPUs")
        for attribute, path in (("tests", "testcase"), ("failures", ".//failure"), ("skipped", ".//skipped")):
            suite.set(attribute, str(len(suite.findall(path))))
        suite.set("time", f"{self.seconds:.3f}")
        if self.says:
            ET.SubElement(suite, "system-out").text = "; ".join(self.says)
        return '<?xml version="1.0" encoding="UTF-8"?>\n' + printable(ET.tostring(suite, encoding="unicode"))
