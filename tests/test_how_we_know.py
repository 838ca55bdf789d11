"""What the pages of docs/how-we-know quote is what benchmarks/results holds."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from whorl.benchmarks import harness

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "how-we-know"


def result(program: str, *path: str | int) -> Any:
    """A part of what a program wrote."""
    part = json.loads((ROOT / "benchmarks" / "results" / f"{program}.json").read_text())
    for step in path:
        part = part[step]
    return part


def share(counts: Mapping[str, Any], digits: int = 1) -> str:
    """A share as the pages write it: per cent, and the 95 % interval."""
    low, high = counts["interval"]
    return f"{100 * counts['share']:.{digits}f} % [{100 * low:.{digits}f}, {100 * high:.{digits}f}]"


def row(*cells: str) -> str:
    """The beginning of a row of a table."""
    return "| " + " | ".join(cells) + " |"


def middle(figures: Mapping[str, float], digits: int) -> str:
    """A median with its interval."""
    return f"{figures['median']:,.{digits}f} [{figures['low']:,.{digits}f}, {figures['high']:,.{digits}f}]"


def quotes() -> Sequence[tuple[str, str]]:
    """(page, what it must say)."""
    cut, gains, past = (
        result("intervals", "cuts"),
        result("intervals", "gains"),
        result("intervals", "past", "longhorn"),
    )
    boards = result("energy", "populations", "without_loads_locked_for_ever")
    meter, simulated_boards = (
        result("energy", "metered", f"{source}, model known", "2 to 10 s") for source in ("metered", "simulated")
    )
    calibrated = result("energy", "calibration", "populations")
    judged, stored = result("verdict_speed", "judge", "4 workloads"), result("verdict_speed", "stored")
    three_peers = next(
        jobs for jobs in result("verdicts", "ranks", "jobs")
        if (jobs["jobs_of"], jobs["slower"]) == ("three peers, one stage", 1.3)
    )  # fmt: skip
    commits, day = result("store", "commits", "ms"), result("scale", "day")
    kinds = result("advise", "gains", "kinds")
    services = result("tune", "search", "simulated", "whorl")
    regret, (low, high) = services["regret_pct"]["12"]["median"], services["regret_pct"]["12"]["interval"]
    return [
        ("verdicts", f"{share(cut['pooled'])} of {cut['pooled']['n']:,}"),
        ("verdicts", f"the least of 25 cuts has {100 * cut['least']:.1f} %"),
        ("advice", f"{share(gains['gains']).split(' %')[0]} % of {gains['gains']['n']} gains"),
        ("verdicts", f"{past['whorl']['false_at_most']['hits']} ({share(past['whorl']['false_at_most'])})"),
        ("verdicts", row("three peers, one stage", "0", "0", "0 % [0, 11]", share(three_peers["whorl_finds_it"], 0))),
        ("energy", f"| {boards['windows']} | {boards['boards']} | {boards['covered_pct']:g} ["),
        ("energy", f"{share(meter['hold'])} of {meter['hold']['n']}"),
        ("energy", f"| 24 | {share(simulated_boards['hold'])} of {simulated_boards['hold']['n']:,} |"),
        *(
            ("energy", f"{row(fleets['description'])} {fleets['gain within 3 %']['hits']} of 192 |")
            for fleets in calibrated.values()
        ),
        ("benchmarks", row("verdicts and fingerprints", middle(judged["whorl"]["cpu_s"], 1))),
        ("benchmarks", row("`whorl report`", f"{stored['report, large']['process_cpu_s']:.1f}")),
        ("benchmarks", row("a durable commit, ms", middle(commits["whorl"], 1))),
        ("benchmarks", row("p95", middle(day["questions"]["p95"]["by_whorl"]["cpu_s"], 2))),
        ("benchmarks", f"{day['rows']:,} rows"),
        ("benchmarks", f"| services on simulated GPUs | {services['n']} | 3.0; {regret} [{low}, {high}]"),
        ("advice", f"{kinds['noise']['fleets']} fleets a row"),
        *(("advice", f"{row(kind['says'])} {100 * kind['told_to_differ']:.0f} %") for kind in kinds.values()),
    ]


@pytest.mark.parametrize(("page", "words"), quotes())
def test_a_page_quotes_what_was_measured(page: str, words: str) -> None:
    assert words in (PAGES / f"{page}.md").read_text()


def test_a_program_prints_what_ran_and_keeps_what_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sections: dict[str, harness.Section] = {
        "first": lambda _options: {"says": "first"}, "second": lambda _options: {"says": "second"},
        "third": lambda _options: {"says": harness.public_file("nowhere").name},
    }  # fmt: skip
    out = tmp_path / "program.json"
    out.write_text('{"benchmark": "program", "second": {"says": "before"}}')
    monkeypatch.setattr("sys.argv", ["program", "--only", "first", "--only", "third", "--out", str(out)])
    harness.run("program", sections, packages=())
    printed, written = json.loads(capsys.readouterr().out), json.loads(out.read_text())
    assert (list(printed), printed["first"]["says"]) == (["benchmark", "first", "third"], "first")
    assert printed["third"]["did_not_run"] == "the public files are not beside the clone"
    assert written == printed | {"second": {"says": "before"}}
