"""What `whorl check` prints: for people, for Nagios and its kin, and as JUnit."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

from ..dashboards.table import Table, number, printable
from ..jobs.checking import Answer, Now, Status

_NAMED = 3


def answer(found: Answer) -> Iterable[str | Table]:
    """For people: a line a GPU, then what is known of the check itself."""
    yield f"{found.node}: {found.status.name}{'' if found.probed else ' (no probe was run)'}"
    rows = [
        [
            one.name,
            one.status.name.lower(),
            ", ".join(f"{now.workload} {_beside(now)}" for now in one.now) or "n/a",
            "; ".join(one.says) or "nothing against it",
        ]
        for one in found.gpus
    ]
    if rows:
        yield Table(("GPU", "status", "now, beside its own level", "why"), rows, wrapped=(2, 3), leaves=(2,))
    if any(now.own_low_pct is not None for one in found.gpus for now in one.now):
        yield "positive is slower; [..]: where its level in another sitting lies, in 95 of 100 cases"
    yield from found.says


def _beside(now: Now) -> str:
    if now.own_pct is not None:
        known = now.own_low_pct is not None and now.own_high_pct is not None
        reach = f" [{now.own_low_pct:+.1f}, {now.own_high_pct:+.1f}]" if known else ""
        return f"{now.own_pct:+.1f} %{reach}"
    return "n/a" if now.peers_pct is None else f"{now.peers_pct:+.1f} % of its peers"


def nagios(found: Answer, warning: float, critical: float) -> str:
    """One line with performance data: how much longer each probe takes than the GPU's own level, in %."""
    bad = [one for one in found.gpus if one.status is not Status.OK]
    bad.sort(key=lambda one: -one.status.weight)
    said = [f"{one.name}: {'; '.join(one.says)}" for one in bad[:_NAMED]]
    if len(bad) > _NAMED:
        said.append(f"{len(bad) - _NAMED} more")
    said += found.says if found.failed else []
    if not said:
        said = [f"{len(found.gpus)} GPUs, nothing against them"]
    text = "; ".join(said).replace("|", "/").replace("\n", " ")
    data = [
        f"'{one.name} {now.workload}'={now.own_pct:.2f}%;{warning:g};{critical:g}".replace("|", "/")
        for one in found.gpus
        for now in one.now
        if now.own_pct is not None
    ]
    data.append(f"time={found.seconds:.1f}s")
    return printable(f"WHORL {found.status.name} - {text} | {' '.join(data)}")


def junit(found: Answer) -> str:
    """A test suite: a case a GPU; a warning or worse is a failure, "unknown" is skipped."""
    cases = []
    for one in found.gpus:
        says = "; ".join(one.says)
        inner = ""
        if one.status in (Status.WARNING, Status.CRITICAL):
            inner = f"<failure type={quoteattr(one.status.name.lower())} message={quoteattr(says)}/>"
        elif one.status is Status.UNKNOWN:
            inner = f"<skipped message={quoteattr(says)}/>"
        figures = "".join(
            f"<property name={quoteattr(now.workload + ' ms')} value={quoteattr(number(now.time_ms))}/>"
            for now in one.now
        )
        inner += f"<properties>{figures}</properties>" if figures else ""
        cases.append(f'<testcase classname="whorl.check" name={quoteattr(one.name)}>{inner}</testcase>')
    if found.failed or not found.gpus:
        why = quoteattr("; ".join(found.says) or "there are no GPUs")
        cases.append(f'<testcase classname="whorl.check" name="check"><skipped message={why}/></testcase>')
    failures = sum(one.status in (Status.WARNING, Status.CRITICAL) for one in found.gpus)
    skipped = len(cases) - len(found.gpus) + sum(one.status is Status.UNKNOWN for one in found.gpus)
    note = f"<system-out>{escape('; '.join(found.says))}</system-out>" if found.says else ""
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + printable(
        f'<testsuite name="whorl check" hostname={quoteattr(found.node)} '
        f'tests="{len(cases)}" failures="{failures}" skipped="{skipped}" time="{found.seconds:.3f}">'
        f"{''.join(cases)}{note}</testsuite>"
    )
