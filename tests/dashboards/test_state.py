"""What the address of a page means."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from whorl.dashboards.app.state import MOST_GPUS, State, parse

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
