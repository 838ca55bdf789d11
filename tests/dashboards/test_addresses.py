"""Every page with every address: nothing fails, nothing of an address becomes a link or a script. No browser."""

from __future__ import annotations

import random
import re
from itertools import product
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whorl.dashboards.app.shell import PAGES
from whorl.dashboards.app.state import MOST_GPUS, State, parse
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.store.vocabulary import EventKind
from whorl.tests.conftest import BuiltOnce
from whorl.tests.dashboards.asking import Asked
from whorl.tests.sizes import count

HTML = "<img src=x onerror=alert(1)>"
_DAY = 86_400_000_000_000
_FIELDS = (
    "cluster", "campaign", "probe", "figure", "gpu", "node", "cabinet", "metric", "since", "until", "live", "last",
    "by", "brush", "without", "job", "model", "gpus", "query", "chart", "x", "y", "colour",
)  # fmt: skip
_VALUES = (
    HTML, "javascript:alert(1)", "", "0", "-1", "1e99", "nan", "9" * 40, "\x00", "\ud800", "'; drop table runs", '"',
    "\\", "../../etc/passwd", "a:b:c", "strips:nan:inf:0:1", "map:9:1:9:1", "power:", "x" * 5000, "-5d",
    "99999999999d",
)  # fmt: skip


def _fill(folder: Any) -> None:
    """GPUs in every state: measured, lost, of MIG, without a node, measured once, never measured, with HTML as a name.

    None was judged, and there is no telemetry."""
    from whorl.tests.stores import new_store

    store = new_store(folder / "store")
    names = ["GPU-a", "GPU-b", "GPU-lost", "MIG-1", "GPU-bare", "GPU-once", "GPU-never", HTML]
    places = [("n1", 0), ("n1", 1), ("n2", 0), (None, None), (None, None), ("n2", 1), ("n2", 2), (HTML, 3)]
    gpus = {
        "cluster": ["c"] * len(names), "gpu": names, "model": ["V100"] * len(names),
        "node": [node for node, _ in places], "slot": [slot for _, slot in places],
        "parent": ["GPU-a" if name == "MIG-1" else None for name in names],
        "mig_profile": ["1g.10gb" if name == "MIG-1" else None for name in names], "first_seen": [0] * len(names),
    }  # fmt: skip
    often = [name for name in names if name not in ("GPU-once", "GPU-never")]
    ran = [(name, day) for name in often for day in (0, 1, 1)] + [("GPU-once", 0)]
    ids = [f"r{number}" for number in range(len(ran))]
    identity = {
        "run_id": ids,
        "cluster": ["c"] * len(ran),
        "gpu": [name for name, _ in ran],
        "workload": ["gemm"] * len(ran),
    }
    began = [day * _DAY + 1000 * number for number, (_, day) in enumerate(ran)]
    times = [10.0 + number % 3 / 10 for number in range(len(ran))]
    events = {"ts": [3 * _DAY], "cluster": ["c"], "gpu": ["GPU-lost"], "node": ["n2"], "kind": [EventKind.LOST.value]}
    results = {**identity, "figure": ["time"] * len(ran), "value": times, "unit": ["ms"] * len(ran)}
    tables = {"gpus": gpus, "runs": {**identity, "began": began}, "results": results, "events": events}
    store.append({name: arrow_rows(name, rows) for name, rows in tables.items()}, "made")
    store.close()


@pytest.fixture(scope="module")
def states(built_once: BuiltOnce) -> Asked:
    return Asked(Store.open(built_once("states", _fill) / "store"))


def _unharmed(text: str) -> None:
    links = re.findall(r'"(?:href|src)": "([^"]*)"', text)
    assert not [link for link in links if "<" in link or link.lower().startswith(("javascript:", "http", "//"))]
    assert "dangerously" not in text


@pytest.mark.long(short=2)
@pytest.mark.parametrize("page", ["fleet", "gpu", "telemetry", "energy", "placement"])
def test_a_page_that_a_person_leaves_answers_nothing_for_the_next_one(page: str, states: Asked) -> None:
    answers = states.left(page, "/sql?gpu=GPU-a&probe=gemm&job=1&by=job&without=GPU-a")
    assert answers
    assert set(answers) == {None}


@pytest.mark.long(short=1)
@pytest.mark.parametrize("page", [page.path for page in PAGES])
def test_no_value_in_an_address_harms_a_page(page: str, states: Asked) -> None:
    values = random.Random(page).sample(list(product(_FIELDS, _VALUES)), count(15, short=3))
    for field, value in values:
        _unharmed(states.said(f"{page}?{field}={quote(value, errors='surrogatepass')}"))


_PAIR = st.tuples(st.sampled_from(_FIELDS), st.text(max_size=20) | st.sampled_from(_VALUES))


@pytest.mark.long
@settings(max_examples=30)
@given(st.sampled_from([page.path for page in PAGES]), st.lists(_PAIR, max_size=6))
def test_no_mixture_of_values_harms_a_page(states: Asked, page: str, pairs: list[tuple[str, str]]) -> None:
    query = "&".join(f"{name}={quote(value, errors='surrogatepass')}" for name, value in pairs)
    _unharmed(states.said(f"{page}?{query}"))


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("gpu", "says"),
    [
        ("GPU-a", ("Nobody has judged this GPU yet", "3", "There is no telemetry of it")),
        ("GPU-lost", ("It has not answered since ", "1970-01-04 00:00", "check its XID errors")),
        ("MIG-1", ("This is a MIG instance (1g.10gb) of the GPU GPU-a",)),
        ("GPU-bare", ("Its node is not known", "whorl collect")),
        ("GPU-once", ("Each workload ran once: measure again",)),
        (
            "GPU-never",
            (
                "It was never measured: nothing can be said of its speed.",
                "Measure it on its node:",
                "whorl probe run --suite quick --gpu",
            ),
        ),
        (HTML, ("Nobody has judged this GPU yet", "Judge its cluster:")),
        ("GPU-", ("choose", "GPU-a")),
        ("nobody", ("nobody",)),
    ],
)
def test_the_page_of_a_gpu_says_what_is_missing_and_what_to_do(gpu: str, says: tuple[str, ...], states: Asked) -> None:
    text = states.said(f"gpu?gpu={quote(gpu)}")
    _unharmed(text)
    for sentence in says:
        assert sentence in text


# -- what an address means ---------------------------------------------------------------------------------------------


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
_MICROSECONDS = st.integers(0, 4_000_000_000_000_000).map(lambda at: at * 1000)


@given(
    st.builds(
        State,
        cluster=st.none() | _TEXT,
        probe=st.none() | _TEXT,
        gpu=st.lists(_TEXT, unique=True, max_size=5).map(tuple),
        metric=st.lists(_TEXT, unique=True, max_size=3).map(tuple),
        since=st.none() | _MICROSECONDS,
        query=st.none() | _TEXT,
    )
)
def test_an_address_says_what_it_was_made_from(state: State) -> None:
    assert parse(state.search()) == (state, ())


@given(st.text(max_size=200))
def test_every_text_is_an_address(text: str) -> None:
    state, problems = parse(text)
    assert isinstance(state, State)
    assert all(sentence.endswith(".") for sentence in problems)


def test_what_says_nothing_is_left_out_and_told() -> None:
    state, problems = parse("?since=yesterday&gpu=a&gpu=a&gpu=b&color=red")
    assert state == State(gpu=("a", "b"))
    assert len(problems) == 1
    assert "'yesterday'" in problems[0]


def test_a_time_that_ends_before_it_begins_is_left_out() -> None:
    state, problems = parse("?since=2026-11-23T12:00:00Z&until=2026-11-23T11:00:00Z&probe=gemm-fp32")
    assert state == State(probe="gemm-fp32")
    assert len(problems) == 1


def test_more_gpus_than_an_address_keeps_are_cut_and_told() -> None:
    names = "&".join(f"gpu=g{number}" for number in range(MOST_GPUS + 1))
    state, problems = parse(names)
    assert len(state.gpu) == MOST_GPUS
    assert f"{MOST_GPUS + 1}" in problems[0]
    assert parse("?query=" + "x" * 100_000)[0] == State()


def test_a_link_keeps_the_rest_of_the_state() -> None:
    state = State(cluster="a&b", gpu=("n1/0",))
    assert state.href("gpu", gpu=("n2/0",)) == "gpu?cluster=a%26b&gpu=n2%2F0"
    assert State().href("") == "./"
