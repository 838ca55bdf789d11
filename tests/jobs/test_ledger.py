"""The ledger: spans add up, their intervals hold the truth, and nothing of it breaks the application."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whorl.collectors.backend import Reading
from whorl.jobs import ledger
from whorl.jobs.ledger.book import Book
from whorl.jobs.ledger.curve import WIDTH
from whorl.jobs.ledger.ledger import Ledger
from whorl.jobs.ledger.spans import Span
from whorl.jobs.ledger.splitting import Event, Node, Splitting
from whorl.jobs.ledger.totals import Factor
from whorl.store.power_sensors import MEASURED_BOARDS
from whorl.tests.jobs.boards import Board, Boards, HandClock
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.sizes import count
from whorl.tests.stores import copied_stores
from whorl.tests.without import NODE, run_without

Array = np.ndarray[Any, np.dtype[np.float64]]


def steady(watts: float) -> Any:
    return lambda t: np.full_like(t, watts)


def square(low: float, high: float, period: float) -> Any:
    return lambda t: np.where((t % period) < period / 2, high, low)


class Bench:
    """A ledger over boards, and their clock: `to` lets time pass, with the readings that the thread would make."""

    def __init__(self, *boards: Board, **options: Any) -> None:
        self.clock = HandClock()
        self.backend = Boards(self.clock, boards)
        self.ledger = Ledger(backend=self.backend, clock=self.clock, thread=False, **options)

    @property
    def book(self) -> Book:
        return self.ledger.book()

    def to(self, seconds: float) -> None:
        while self.clock.now_s + 0.05 < seconds:
            self.clock.sleep(50_000_000)
            self.book.look()
        self.clock.to(seconds)

    def span(self, began: float, ended: float, name: str = "work", **options: Any) -> Span:
        self.to(began)
        with self.ledger.span(name, **options) as span:
            self.to(ended)
        return span


# -- how it is split --------------------------------------------------------------------------------------------


class Ramp:
    """A curve that is known exactly: the energy used by t is t^2."""

    def at(self, times: Array) -> tuple[Array, Array]:
        found = np.zeros((len(times), WIDTH))
        found[:, 0] = times**2
        return found, np.zeros(len(times))


trees = st.lists(
    st.tuples(st.integers(0, 400), st.integers(1, 400), st.integers(-1, 8), st.sampled_from([1.0, 2.0, 0.5])),
    min_size=1,
    max_size=9,
)


@settings(max_examples=count(200, short=10), deadline=None)
@given(trees, st.integers(1, 5))
def test_spans_have_what_the_rule_gives_them_and_add_up(tree: list[tuple[int, int, int, float]], batch: int) -> None:
    """Against the rule on a grid of 1 ms: at each instant, all goes to the innermost open spans by weight."""
    nodes: list[Node] = []
    bounds: list[tuple[int, int]] = []
    for number, (began, lasts, parent, weight) in enumerate(tree):
        node = Node(weight)
        at, to = began, began + lasts
        if 0 <= parent < number and bounds[parent][0] <= at < bounds[parent][1]:
            node.within = nodes[parent]
        nodes.append(node)
        bounds.append((at, to))
    events: list[Event] = sorted(
        [(a / 1000, n, True) for n, (a, _) in zip(nodes, bounds, strict=True)]
        + [(b / 1000, n, False) for n, (_, b) in zip(nodes, bounds, strict=True)],
        key=lambda event: event[0],
    )
    parents = [node.within for node in nodes]
    books = Splitting([Ramp()], 0.0)
    ended = [node for first in range(0, len(events), batch) for node in books.take(events[first : first + batch])]
    assert sorted(map(id, ended)) == sorted(map(id, nodes))
    assert books.idle

    expected = np.zeros(len(nodes))
    for t in range(1000):
        open_ones = [n for n, (a, b) in enumerate(bounds) if a <= t < b]
        # A span that ended is still around what is inside it.
        inner = [
            n
            for n in open_ones
            if not any(parents[o] is nodes[n] and _active(o, t, nodes, parents, bounds) for o in range(len(nodes)))
        ]
        total = sum(nodes[n].weight for n in inner)
        for n in inner:
            expected[n] += nodes[n].weight / total * ((t + 1) ** 2 - t**2) / 1e6
    own = np.array([_used(node)[0] - (0 if node.used_inside is None else node.used_inside[0]) for node in nodes])
    assert own == pytest.approx(expected, abs=1e-9)
    for node in nodes:
        inside = [
            _used(other)[0]
            for other, parent in zip(nodes, parents, strict=True)
            if parent is node and other.within is node
        ]
        assert sum(inside) == pytest.approx(0 if node.used_inside is None else node.used_inside[0], abs=1e-12)


def _used(node: Node) -> Array:
    assert node.used is not None
    return node.used


def _active(n: int, t: int, nodes: list[Node], parents: list[Node | None], bounds: list[tuple[int, int]]) -> bool:
    """Whether a span is open, or one inside it is."""
    return bounds[n][0] <= t and (
        t < bounds[n][1]
        or any(
            parents[o] is nodes[n] and bounds[o][0] <= t and _active(o, t, nodes, parents, bounds)
            for o in range(len(nodes))
        )
    )


def test_children_and_own_add_up_to_the_parent() -> None:
    bench = Bench(Board(square(100, 300, 0.7)), Board(steady(80)))
    bench.to(2)
    with bench.ledger.span("request") as request:
        bench.to(3)
        parts = [bench.span(3.1, 5), bench.span(5, 7.03)]
        bench.to(9)
    whole, own = request.figure(), request.own()
    assert own.energy_j is not None
    assert whole.energy_j == pytest.approx(own.energy_j + sum(p.energy_j or 0 for p in parts), rel=1e-12)
    assert whole.method == "counter"
    assert whole.measured == 1
    assert whole.energy_j == pytest.approx(7 * 280, rel=0.03)


def test_concurrent_spans_share_by_weight_whatever_their_threads() -> None:
    bench = Bench(Board(steady(200)))
    bench.to(2)
    spans = [bench.ledger.span("one"), bench.ledger.span("two", weight=3, parent=None)]
    for span in spans:
        span.__enter__()
    bench.to(6)
    for span in spans:
        span.__exit__(None, None, None)
    assert [span.energy_j for span in spans] == pytest.approx([200, 600], rel=0.01)


# -- what the interval holds ------------------------------------------------------------------------------------


def loads(rng: np.random.Generator) -> Any:
    """Some load: steady, squares from 10 ms to 5 s, or steps at random."""
    kind, low, high = rng.integers(3), rng.uniform(40, 90), rng.uniform(150, 390)
    if kind == 0:
        return steady(high)
    if kind == 1:
        return square(low, high, 10 ** rng.uniform(-2, 0.7))
    levels = rng.uniform(low, high, 4000)
    return lambda t: levels[(t / 0.05).astype(int) % 4000]


@pytest.mark.parametrize("counter", [True, False])
def test_the_interval_holds_the_true_energy(counter: bool) -> None:
    rng = np.random.default_rng(7)
    held, known, n = 0, 0, 0
    for _ in range(count(60, short=3)):
        board = MEASURED_BOARDS[rng.integers(len(MEASURED_BOARDS))]
        bench = Bench(
            Board(
                loads(rng),
                until=16,
                gain=board[1] / 100,
                offset_w=board[2],
                phase_s=rng.uniform(0, 0.1),
                counter=counter,
            )
        )
        at = 1.5
        while at < 14:
            length = 10 ** rng.uniform(-2, 0.6)
            began, ended = at + rng.uniform(0, 0.2), min(at + 0.2 + length, 15.0)
            figure = bench.span(began, ended).figure()
            assert figure.low_j is not None
            assert figure.high_j is not None
            held += figure.low_j <= bench.backend.boards[0].used(began, ended) <= figure.high_j
            known += figure.energy_j is not None
            n += 1
            at = ended + 0.05
    assert n > count(300, short=15)
    assert held / n > 0.95
    assert known / n > 0.3


def test_what_is_too_short_for_the_sensor_has_bounds_and_no_figure() -> None:
    bench = Bench(Board(square(50, 350, 0.02)))
    short = bench.span(2, 2.01)
    assert (short.energy_j, short.reason) == (None, "too short")
    assert short.low_j is not None
    assert short.high_j is not None
    assert short.low_j <= bench.backend.boards[0].used(2, 2.01) <= short.high_j < 10


def test_a_counter_that_begins_anew_is_a_gap_with_bounds() -> None:
    bench = Bench(Board(steady(200), resets=[4.0], shows_power=False))
    figure = bench.span(2, 10).figure()
    assert figure.energy_j == pytest.approx(1600, rel=0.03)
    assert figure.measured is not None
    assert 0.95 < figure.measured < 1
    whole = bench.span(10.5, 18.5).figure()
    assert (figure.high_j or 0) - (figure.low_j or 0) > (whole.high_j or 0) - (whole.low_j or 0) + 10


def test_a_lost_gpu_widens_the_interval_and_then_there_is_no_figure() -> None:
    board = Board(steady(200), lost=[(4, 7), (20, 30)])
    bench = Bench(board)
    figure = bench.span(2, 10).figure()
    assert figure.energy_j is not None
    assert figure.low_j is not None
    assert figure.high_j is not None
    assert figure.low_j < 1000 < 1600 + 800 < figure.high_j
    assert bench.backend.looked > 1
    gone = bench.span(22, 26).figure()
    assert (gone.energy_j, gone.reason) == (None, "mostly gaps")
    assert gone.high_j == pytest.approx(4 * 400 * 1.25, rel=0.01)


def test_power_is_read_where_there_is_no_counter_and_0_w_is_no_reading() -> None:
    bench = Bench(Board(steady(150), counter=False))
    figure = bench.span(2, 6).figure()
    assert figure.method == "power"
    assert figure.energy_j == pytest.approx(600, rel=0.01)
    zero = Bench(Board(steady(0), counter=False))
    assert zero.span(2, 6).reason == "no sensor"
    assert "GPU-0 tells neither energy nor power" in (zero.ledger.problem() or "")


def test_a_counter_that_stands_still_gives_way_to_power() -> None:
    board = Board(steady(150))
    board.truth[3000:] = board.truth[3000]  # as the counter has it
    readings = board.readings
    board.readings = lambda at: readings(at) | {"power_mw": 150_000}  # type: ignore[method-assign]
    figure = Bench(board).span(5, 15).figure()
    assert figure.method == "power"
    assert figure.energy_j == pytest.approx(1500, rel=0.02)


def test_a_grace_hopper_gpu_is_metered_by_its_own_power_and_not_by_the_counter_of_its_module() -> None:
    board = Board(steady(150), model="NVIDIA GH200 480GB")
    readings = board.readings
    module = {"power_instant_mw": 400_000}

    def of_module(at: float) -> dict[str, int]:
        own = readings(at)
        return own | module | {"energy_mj": own["energy_mj"] * 3}

    board.readings = of_module  # type: ignore[method-assign]
    figure = Bench(board).span(2, 12).figure()
    assert figure.method == "power"
    assert figure.energy_j == pytest.approx(1500, rel=0.02)


def test_no_telemetry_is_read_while_no_span_is_open() -> None:
    clock = HandClock()
    backend = Boards(clock, [Board(steady(100))])
    books = Ledger(backend=backend, clock=clock, thread=False).open()
    assert backend.reads == 2  # what the sensor is, and where the counter stands
    books.close()
    assert backend.closed


# -- applications -----------------------------------------------------------------------------------------------


@pytest.fixture
def simulated() -> Iterator[Ledger]:
    yield ledger.open(backend="simulated", gpus=[0])
    ledger.close()


def test_a_simulated_gpu_with_the_thread(simulated: Ledger) -> None:
    assert ledger.problem() is None
    with ledger.span("outer") as outer:
        time.sleep(0.3)
    assert outer.settle()
    assert outer.low_j is not None
    assert outer.high_j is not None
    assert 0 <= outer.low_j < outer.high_j <= 1.25 * 700 * (outer.duration_s or 0) + 1e-3  # an H100 draws no more
    assert outer.high_j > 5
    assert [(total.name, total.n) for total in ledger.totals()] == [("outer", 1)]


def test_a_span_with_spans_inside_has_its_figure_as_soon_as_it_is_asked_for(simulated: Ledger) -> None:
    seconds = 0.5
    while True:
        with simulated.span("request") as request:
            with simulated.span("prefill") as prefill:
                time.sleep(seconds)
            with simulated.span("decode") as decode:
                time.sleep(1.2 * seconds)
        found = [request.figure(), prefill.figure(), decode.figure()]
        reasons = [figure.reason for figure in found]
        if not {"mostly gaps", "too short"}.intersection(reasons) or seconds > 8:
            break
        seconds *= 2  # the machine kept the ledger from reading
    assert reasons == [None, None, None]
    whole, *parts = (figure.energy_j or 0.0 for figure in found)
    own = request.own()  # as a rule too short to be told from nothing
    assert own.high_j is not None
    assert sum(parts) - 0.5 <= whole <= sum(parts) + own.high_j + 0.5
    with simulated.span("outer") as outer, simulated.span("inner") as inner:
        outer.__exit__(None, None, None)
        assert outer.figure().reason == "open"  # the span inside it has not ended
    assert inner.ended_ns is not None


def test_real_bindings_and_a_gpu_that_falls_off_the_bus(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 2", "model A100", "load 1 0.5")
    books = Ledger(gpus=[1])
    with books.span("work") as span:
        time.sleep(0.4)
    assert books.problem() is None
    figure = span.figure()
    assert figure.method == "counter"
    assert figure.high_j is not None
    assert 5 < figure.high_j <= 1.25 * 400 * (span.duration_s or 0) + 1e-3  # an A100 draws no more
    nvml.add("gpu 1 lost")
    with books.span("lost") as span:
        time.sleep(0.1)
    assert span.settle(3.0)
    assert span.reason == "mostly gaps"
    books.close()
    assert not nvml.setters()


def test_parents_follow_the_context(simulated: Ledger) -> None:
    found: dict[str, str | None] = {}

    async def task(name: str) -> None:
        with ledger.span(name) as span:
            found[name] = span.parent_id
            await asyncio.sleep(0.01)
            with ledger.span(name + " inside") as inside:
                found[name + " inside"] = inside.parent_id
                await asyncio.sleep(0)
            assert inside.parent_id == span.id

    async def both() -> None:
        with ledger.span("top") as top:
            await asyncio.gather(task("a"), task("b"))
        assert found["a"] == found["b"] == top.id

    asyncio.run(both())
    with ledger.span("main") as main, ThreadPoolExecutor(2) as pool:
        alone = pool.submit(_parent_there).result()
        given = pool.submit(contextvars.copy_context().run, _parent_there).result()
        with ledger.span("elsewhere", parent="other-1") as elsewhere:
            pass
    assert (alone, given, elsewhere.parent_id) == (None, main.id, "other-1")
    assert ledger.current() is None


def _parent_there() -> str | None:
    with ledger.span("in a thread") as span:
        return span.parent_id


def test_decorated_functions_of_every_kind(simulated: Ledger) -> None:
    @ledger.span("f", batch=3)
    def plain(x: int) -> int:
        return x + 1

    @ledger.span("f")
    async def later(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    @ledger.span("f")
    def some() -> Iterator[int]:
        yield 1
        yield 2

    @ledger.span("f")
    async def some_later() -> AsyncIterator[int]:
        yield 1
        yield 2

    async def gathered() -> list[int]:
        return [x async for x in some_later()]

    assert (plain(1), plain(2), plain.__name__) == (2, 3, "plain")
    assert asyncio.run(later(1)) == 2
    assert list(some()) == [1, 2]
    assert asyncio.run(gathered()) == [1, 2]
    assert {tuple(total.attributes.items()): total.n for total in ledger.totals()} == {(("batch", 3),): 2, (): 3}


def test_exceptions_pass_and_generators_left_half_way_mislead_nobody(simulated: Ledger) -> None:
    span = ledger.span("fails")
    with pytest.raises(KeyError), span:
        raise KeyError
    assert span.error == "KeyError"

    def numbers() -> Iterator[int]:
        with ledger.span("numbers"):
            yield 1
            yield 2

    going = numbers()
    next(going)
    inside = ledger.span("while it waits")
    with inside:
        list(going)  # ends the span around
        with ledger.span("later") as later:
            pass
    assert later.parent_id == inside.id
    assert ledger.current() is None
    with span:  # again: the first counts
        pass
    assert span.error == "KeyError"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of forks beside threads, which is the point
def test_a_fork_begins_a_ledger_of_its_own(simulated: Ledger) -> None:
    with ledger.span("parent") as parent:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                with ledger.span("child") as span:
                    time.sleep(0.25)
                good = span.parent_id == parent.id and not span.id.startswith(parent.id[:16])
                os.write(writer, b"%d %d" % (good, span.high_j is not None))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.2)
    assert os.read(reader, 10) == b"1 1"
    assert parent.high_j is not None


@pytest.mark.parametrize("options", [{"backend": "none"}, {"backend": "simulated", "gpus": ["GPU-unknown"]}])
def test_without_a_gpu_the_application_goes_on(options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    books = Ledger(**options)
    with books.span("work") as span:
        time.sleep(0.001)
    assert (span.energy_j, span.reason) == (None, "no gpu")
    assert span.duration_s is not None
    assert books.problem()
    assert len(caplog.records) == 1
    assert [(t.n, t.figure().reason) for t in books.totals()] == [(1, "no gpu")]
    assert not books.book()._events  # nothing waits for a sensor that there is not
    books.close()


def test_a_driver_that_fails_or_hangs_later_costs_figures_only(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Board(steady(100)))
    books = Ledger(backend=bench.backend)  # with the thread and the real clock
    bench.clock.steady = bench.clock.wall = lambda: 2_000_000_000  # type: ignore[method-assign]
    books.open()
    bench.backend.breaks = RuntimeError
    with books.span("work") as span:
        time.sleep(0.1)
    assert span.settle(0.01) is False
    assert [record.message for record in caplog.records] == ["the ledger cannot read the GPUs"]
    bench.backend.breaks = None
    hangs = threading.Event()

    def hang(gpus: Sequence[str], *, slow: bool) -> Iterator[Reading]:
        hangs.wait(5)
        yield from ()

    bench.backend.read = hang  # type: ignore[method-assign]
    with books.span("hangs") as span:
        time.sleep(0.1)
    assert span.settle(0.05) is False
    assert books.figure(span).reason == "no answer"
    hangs.set()
    books.close()


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [("1", ["GPU-1"]), ("GPU-0,GPU-1", ["GPU-0", "GPU-1"]), (None, ["GPU-0", "GPU-1"]), ("", None), ("7", None)],
)
def test_only_gpus_that_cuda_shows_are_counted(
    visible: str | None, gpus: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    bench = Bench(Board(steady(100)), Board(steady(100)))
    sensing = bench.book.sensing
    assert Ledger(backend="simulated").problem() is None  # which CUDA knows nothing of
    assert (None if sensing is None else list(sensing.gpus)) == gpus
    assert (bench.ledger.problem() is None) is (gpus is not None)


@pytest.mark.long
def test_a_node_needs_no_more_than_the_packages_for_measuring() -> None:
    code = """
import time
from whorl import ledger
ledger.open(backend="simulated", gpus=[0])
with ledger.span("a") as a:
    time.sleep(0.25)
print(a.high_j is not None, [q.n for q in ledger.quote(["a"])])
"""
    done = run_without(NODE, code)
    assert (done.stdout, done.stderr) == ("True [1]\n", "")


# -- totals, quotes, the store ------------------------------------------------------------------------------------


def test_a_quote_has_time_joules_and_grams_and_says_what_is_worth_choosing() -> None:
    bench = Bench(Board(lambda t: np.where(t < 20, 300.0, 150.0)))
    for at in (2, 4, 6, 8):
        bench.span(at, at + 1, "step", cap=300)
    for at in (22, 24, 26, 28):
        bench.span(at, at + 1.5, "step", cap=150)
    bench.span(40, 43, "step", cap=100)
    quotes = bench.ledger.quote([{"cap": 300}, {"cap": 150}, {"cap": 100}, {"cap": 7}, "other"], grams_per_kwh=500)
    assert [quote.n for quote in quotes] == [4, 4, 1, 0, 0]
    assert [quote.seconds for quote in quotes] == pytest.approx([1, 1.5, 3, None, None])
    assert [quote.energy_j for quote in quotes[:3]] == pytest.approx([300, 225, 450], rel=0.03)
    assert quotes[0].co2e_g == pytest.approx(300 / 3.6e6 * 500, rel=0.03)
    assert [quote.pareto for quote in quotes] == [True, True, False, False, False]
    assert (quotes[3].reason, quotes[3].energy_j) == ("unseen", None)
    assert quotes[2].seconds_low is None  # one span says nothing of their spread
    assert quotes[2].high_j is None
    for quote in quotes[:2]:
        assert quote.low_j is not None
        assert quote.high_j is not None
        assert quote.low_j < (quote.energy_j or 0) < quote.high_j


def test_grams_are_by_the_settings_of_the_store_with_their_source(tmp_path: Path) -> None:
    lines = 'zone = "DE"\npue = 1.5\n[[factor]]\nzone = "DE"\ng_per_kwh = 400\nsource = "the site"\nyear = 2025\n'
    (tmp_path / "energy.toml").write_text(lines)
    bench = Bench(Board(steady(200)), settings=tmp_path / "energy.toml")
    bench.span(2, 6)
    (quote,) = bench.ledger.quote(["work"])
    assert quote.factor == Factor(600.0, 1.5, "DEU", "the site", 2025)
    assert quote.co2e_g == pytest.approx((quote.energy_j or 0) / 3.6e6 * 600)
    (plain,) = Ledger(backend="none").quote(["work"])
    assert (plain.co2e_g, plain.factor) == (None, None)


def test_recursion_counts_once() -> None:
    bench = Bench(Board(steady(100)))
    bench.to(2)
    with bench.ledger.span("walk"):
        bench.span(2, 4, "walk")
    (total,) = bench.ledger.totals()
    assert total.n == 1
    assert total.figure().energy_j == pytest.approx(200, rel=0.02)


def test_spans_in_a_store_add_up_by_sql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from whorl.store import Store

    monkeypatch.setenv("SLURM_JOB_ID", "4242")
    with copied_stores():
        bench = Bench(Board(steady(200)), store=tmp_path / "s")
        bench.to(2)
        with bench.ledger.span("request", user="a") as request:
            bench.span(2.5, 4, "prefill")
            decode = bench.ledger.span("decode")
            decode.__enter__()
            bench.to(6)
            decode.__exit__(ValueError, ValueError("x"), None)
            bench.to(7)
        bench.ledger.close()
        other = Bench(Board(steady(200)), store=tmp_path / "s")  # as in another process: on another GPU, or the same
        other.backend._names = ["GPU-9"]
        other.span(2, 4, "worker", parent=request.id)
        same = Bench(Board(steady(200)), store=tmp_path / "s")
        same.span(2, 4, "twin", parent=request.id)
        for one in (other, same):
            one.ledger.close()
    store = Store.open(tmp_path / "s")
    rows = {row["name"]: row for row in store.sql("SELECT * FROM spans").to_pylist()}
    assert rows["request"]["own_j"] + rows["prefill"]["own_j"] + rows["decode"]["own_j"] == pytest.approx(
        rows["request"]["energy_j"]
    )
    assert (rows["decode"]["error"], rows["prefill"]["parent"]) == ("ValueError", request.id)
    assert (rows["request"]["attributes"], rows["request"]["job_id"]) == ([("user", "a")], "4242")
    assert (rows["prefill"]["within_parent"], rows["worker"]["within_parent"]) == (True, False)
    assert (rows["request"]["ended"] - rows["request"]["began"]).total_seconds() == pytest.approx(5)
    totals = {row["name"]: row for row in store.sql("SELECT * FROM spans_total").to_pylist()}
    assert (totals["prefill"]["spans"], totals["prefill"]["total_j"]) == (1, pytest.approx(300, rel=0.02))
    assert (totals["request"]["spans"], totals["request"]["twice"], totals["request"]["total_j"]) == (5, True, None)
    without = store.sql("SELECT sum(own_j) AS j FROM spans WHERE name <> 'twin'").to_pylist()
    assert without[0]["j"] == pytest.approx(1000 + 400, rel=0.02)


def test_spans_of_processes_on_other_gpus_add_up(tmp_path: Path) -> None:
    from whorl.store import Store

    with copied_stores():
        bench = Bench(Board(steady(200)), store=tmp_path / "s")
        request = bench.span(2, 6)
        other = Bench(Board(steady(100)), store=tmp_path / "s")
        other.backend._names = ["GPU-9"]
        worker = other.span(3, 5, "worker", parent=request.id)
        for one in (bench, other):
            one.ledger.close()
    (row,) = Store.open(tmp_path / "s").sql("SELECT * FROM spans_total WHERE name = 'work'").to_pylist()
    assert (row["spans"], row["twice"]) == (2, False)
    assert row["total_j"] == pytest.approx((request.energy_j or 0) + (worker.energy_j or 0))
    assert row["low_j"] == pytest.approx((request.low_j or 0) + (worker.low_j or 0))


def test_spans_that_are_stored_and_not_yet_in_place_are_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from whorl.store import Store
    from whorl.store.system import files

    def fails(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with copied_stores():
        bench = Bench(Board(steady(200)), store=tmp_path / "s")
        bench.span(2, 4)
        keeper = bench.book.keeper
        assert keeper is not None
        bench.book.settle(1)
        with monkeypatch.context() as disk:
            disk.setattr(files, "rename", fails)
            keeper.flush(all_of_it=True)
        bench.span(5, 6, "later")
        bench.ledger.close()
    rows = Store.open(tmp_path / "s").sql("SELECT name FROM spans ORDER BY began").to_pylist()
    assert [row["name"] for row in rows] == ["work", "later"]
