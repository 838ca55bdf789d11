"""A verdict in words: what its codes and numbers become for people."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from whorl.analysis.verdicts import Cause, Kind, Level, NotJudged, State, Verdict
from whorl.analysis.verdicts.states import RISE, THROTTLED, WARM
from whorl.analysis.verdicts.verdict import Action, ComparedWith, Gap, Measured, Part, Planted, Quantity
from whorl.dashboards import words
from whorl.dashboards.answers.mappings import finding as row
from whorl.dashboards.documents.evidence import action, because, evidence, reference, remark, size, why_not

DAY, LATER = datetime.fromisoformat("2026-09-01T10:00"), datetime.fromisoformat("2026-09-08T10:00")


def finding(kind: Kind = Kind.SLOW, *measured: Measured, **changes: Any) -> Verdict:
    values: dict[str, Any] = {
        "level": Level.GPU, "name": "n1/0", "gpus": ("n1/0",), "cluster": "c", "model": "V100", "workloads": ("gemm",),
        "kind": kind, "state": State.CONFIRMED, "effect_pct": 6.0, "low_pct": 5.0, "high_pct": 7.0, "p": 1e-6,
        "q": 1e-4, "n": 16, "causes": (), "first_seen": LATER, "last_seen": LATER, "runs": (),
        "action": Action.RUN_FULL_SUITE, "measured": measured, "reference": ComparedWith.GPUS,
    }  # fmt: skip
    return Verdict(**values | changes)


def seen(kind: Kind, *measured: Measured, **changes: Any) -> Verdict:
    return finding(kind, *measured, **{"effect_pct": None, "reference": None, "figure": ""} | changes)


def past(kind: Kind, *measured: Measured, **changes: Any) -> Verdict:
    return finding(kind, *measured, **{"reference": ComparedWith.PAST} | changes)


HEATED = (Cause(Part.HEAT, 5.0, 4.0, 6.0), Cause(Part.UNEXPLAINED, 1.0, 0.0, 2.0))
SENTENCES = {
    "6.0 % slower in gemm: 5.0 heat [+4.0, +6.0], 1.0 unexplained [0.0, +2.0] "
    "(1300 MHz, its peers 1380; 82 °C, its peers 66, limit 83)": finding(
        Kind.HOT,
        Measured(Quantity.CLOCK, 1300, 1380, "MHz"),
        Measured(Quantity.TEMPERATURE, 82, 66, "degC", 83),
        causes=HEATED,
    ),
    "power brake for 29 % of the time": finding(Kind.BRAKED, Measured(Quantity.HELD_BY_BRAKE, 0.29, unit="share")),
    "6.0 % slower in gemm (errors of its memory: XID 48, 63)": finding(
        Kind.SLOW, Measured(Quantity.XID, 48), Measured(Quantity.XID, 63)
    ),
    "6.0 % faster in gemm, compared at the clock that it has": finding(Kind.FAST, effect_pct=-6.0, at_clock=True),
    "all 2 GPUs of n1 together: 6.0 % slower in gemm": finding(level=Level.NODE, name="n1", gpus=("n1/0", "n1/1")),
    "2 GPUs are 6.0 % slower than the others in gemm; they share VBIOS 2": finding(
        Kind.SLOW, Measured(Quantity.VBIOS, text="2"), level=Level.BATCH, gpus=("n1/0", "n2/0")
    ),
    "they share nothing that is recorded": finding(level=Level.BATCH, gpus=("n1/0", "n2/0")),
    "it warms more a watt by 65 % (0.220 K/W, its peers 0.133)": finding(
        Kind.HOT, Measured(RISE.name, 0.22, 0.1333, RISE.unit), figure=RISE.name
    ),
    "it is hotter in the same work by 12 K (78 °C, its peers 66)": finding(
        Kind.HOT, Measured(WARM.name, 78, 66, WARM.unit), figure=WARM.name
    ),
    "in more of its runs: 15 %, its peers 0 %": finding(
        Kind.UNSTABLE, Measured(THROTTLED.name, 0.15, 0.0, THROTTLED.unit), figure=THROTTLED.name
    ),
    "it fell off the bus 3 times; its last good run before was gemm, begun 2026-09-01 10:00": seen(
        Kind.LOST, Measured(Quantity.LOSSES, 3), Measured(Quantity.LAST_GOOD_RUN, at=DAY, text="gemm")
    ),
    "it fell off the bus; no run of it ended well": seen(
        Kind.LOST, Measured(Quantity.LOSSES, 1), Measured(Quantity.LAST_GOOD_RUN)
    ),
    "wrong elements in 2 of 5 checked results (up to 1,211): gemm": seen(
        Kind.WRONG, Measured(Quantity.WRONG_RESULTS, 2, limit=5), Measured(Quantity.WRONG_ELEMENTS, 1211)
    ),
    "(how many was not counted)": seen(
        Kind.WRONG, Measured(Quantity.WRONG_RESULTS, 2, limit=5), Measured(Quantity.WRONG_ELEMENTS)
    ),
    "gemm did not end: it hung": seen(Kind.FAILED, Measured(Quantity.FAILED_RUNS, 1, text="it hung")),
    "the driver reported: XID 62 (2 times): its micro-controller halted, it cannot be used before it is reset": seen(
        Kind.FAILED, Measured(Quantity.XID, 62, n=2), Measured(Quantity.NEEDS_RESET)
    ),
    "the driver reported of its memory: XID 63: a page retired or a row remapped": seen(
        Kind.MEMORY_ERRORS, Measured(Quantity.XID, 63, n=1)
    ),
    "the power reading stayed at 151.500 W for 12 s (50 readings) while the utilisation moved by 40 points": seen(
        Kind.SENSOR,
        Measured(Quantity.STILL_POWER, 151.5, unit="W", n=50),
        Measured(Quantity.STILL_TIME, 12, unit="s"),
        Measured(Quantity.MOVED_UTILISATION, 40, unit="%"),
    ),
    "4 runs have a power of 151.500 W, to the milliwatt, where the power of its peers differs by a factor of 1.5": seen(
        Kind.SENSOR, Measured(Quantity.STILL_POWER, 151.5, unit="W", n=4), Measured(Quantity.MOVED_POWER, 1.5)
    ),
    "6.0 % slower [+5.0, +7.0] than its own level before, in gemm since 2026-09-08 (3 sittings; last seen as before on "
    "2026-09-01); then: driver 535 to 550, its temperature 60 to 75 °C, GPU g9 came to its node": past(
        Kind.SLOWER,
        Measured(Quantity.LAST_BEFORE, at=DAY),
        Measured(Quantity.SITTINGS, 3),
        Measured(Quantity.DRIVER, text="550", text_before="535"),
        Measured(Quantity.TEMPERATURE, 75, 60, "degC"),
        Measured(Quantity.NEIGHBOUR, text="g9"),
    ),
    "2 GPUs became 6.0 % slower [+5.0, +7.0] together in gemm, between 2026-09-01 and 2026-09-08 with driver "
    "unknown to 550; it did not last": past(
        Kind.SLOWER,
        Measured(Quantity.LAST_BEFORE, at=DAY),
        Measured(Quantity.UNTIL),
        Measured(Quantity.DRIVER, text="550"),
        level=Level.BATCH,
        gpus=("n1/0", "n2/0"),
    ),
    "becomes slower in gemm by 0.84 % a week [+0.70, +0.97]: +6.0 % in 49 days (8 sittings)": past(
        Kind.DRIFTING, Measured(Quantity.SPAN, 49, unit="d"), Measured(Quantity.SITTINGS, 8)
    ),
    "unstable in gemm: 4 of 40 runs are slower than the others of their sittings, "
    "by 6.0 % in the median [+5.0, +7.0] (fleet: 0.5 %); "
    "heat holds its clock (82 °C, its peers 66): 1254 MHz in its slower runs, 1308 MHz in its faster ones": past(
        Kind.UNSTABLE,
        Measured(Quantity.SLOWER_RUNS, 4, 0.005, limit=40),
        Measured(Quantity.TEMPERATURE, 82, 66, "degC"),
        Measured(Quantity.CLOCK_OF_SLOWER_RUNS, 1254, 1308, "MHz"),
    ),
}


@pytest.mark.parametrize("words", SENTENCES)
def test_codes_and_numbers_become_a_because(words: str) -> None:
    assert words in because(SENTENCES[words])


@pytest.mark.parametrize("kind", Kind)
def test_what_was_stored_without_numbers_has_a_sentence_too(kind: Kind) -> None:
    for verdict in (finding(kind), seen(kind), past(kind)):
        assert because(verdict)
        assert "nan" not in because(verdict)


def test_every_code_has_words() -> None:
    assert all(action(finding(action=code)).endswith(".") for code in Action)
    of_smallest = (Gap.ALONE, Gap.TOO_FEW_TO_NAME)
    assert all(why_not(NotJudged("c", "gemm", why, n=2, total=8)) for why in Gap if why not in of_smallest)
    assert set(words.KINDS) == set(Kind)
    assert row(finding())["reference"] == "16 GPUs of V100"
    assert (
        reference(finding(reference=ComparedWith.NODES, level=Level.NODE, model=None)) == "16 nodes of the same cluster"
    )
    assert reference(past(Kind.SLOWER)) == "its own earlier sittings"
    assert reference(seen(Kind.LOST)) == ""


def test_size_and_evidence_have_n_and_intervals() -> None:
    hot = finding(Kind.HOT, effect_pct=62.0, low_pct=40.0, high_pct=80.0, figure=RISE.name, state=State.SUSPECTED)
    assert size(hot) == "+62.0 % of K/W [+40.0, +80.0]"
    assert size(finding(effect_pct=0.31, low_pct=0.296, high_pct=0.324)) == "+0.310 % of time [+0.296, +0.324]"
    assert evidence(hot) == (
        "In one sitting, compared with 16 GPUs of V100, temperature rise, p 1e-06, q 0.0001, from 2026-09-08 "
        "10:00 to 2026-09-08 10:00 UTC; measure again on another day to be sure."
    )
    assert evidence(seen(Kind.LOST, first_seen=None, p=None, q=None)) == "Seen, which needs no test."
    place = finding(Kind.LOSES, level=Level.NODE, name="n1", reference=ComparedWith.NODES, state=State.SUSPECTED)
    assert "sitting" not in evidence(place), "cards that fail have no sittings"
    assert "measure again" not in evidence(place)


def test_a_planted_fault_that_was_missed_says_why() -> None:
    noticed, others, missed = (remark(Planted("GPU-1", "hot", kind)) for kind in ("hot", "slow", ""))
    assert (noticed, others) == ("", "found, but not as hot")
    assert missed != remark(Planted("GPU-1", "drift", "")) != ""
