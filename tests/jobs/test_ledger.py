"""The ledger: spans add up, their intervals hold the truth, and nothing of it breaks the application."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whorl import ledger
from whorl.collectors.backend import Reading, find_backend
from whorl.errors import InputError
from whorl.jobs.ledger import Ledger, Span
from whorl.store import Store
from whorl.store.power_sensors import MEASURED_BOARDS
from whorl.tests.checks import not_none
from whorl.tests.jobs.boards import Board, Boards, HandClock
from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.sizes import count
from whorl.tests.stores import ask, copied_stores, new_store
from whorl.tests.without import NODE, run_without


def steady(watts: float) -> Any:
    return lambda t: np.full_like(t, watts)


def square(low: float, high: float, period: float) -> Any:
    return lambda t: np.where((t % period) < period / 2, high, low)


class Bench:
    """A ledger over boards, and their clock: `to` lets time pass, with a look every 50 ms, as the thread has."""

    def __init__(self, *boards: Board, names: Sequence[str] | None = None, **options: Any) -> None:
        self.clock = HandClock()
        self.backend = Boards(self.clock, boards, names)
        self.ledger = Ledger(backend=self.backend, clock=self.clock, **options)

    def to(self, seconds: float) -> None:
        while (next_look := (self.clock.now // 50_000_000 + 1) * 50_000_000) < 1e9 * seconds:
            self.clock.now = next_look
            self.ledger.look()
        self.clock.to(seconds)

    def span(self, began: float, ended: float, name: str = "work", **options: Any) -> Span:
        self.to(began)
        with self.ledger.span(name, **options) as span:
            self.to(ended)
        return span


# -- how it is split --------------------------------------------------------------------------------------------

trees = st.lists(st.tuples(st.integers(20, 90), st.integers(10, 60), st.integers(-1, 6)), min_size=1, max_size=7)


@settings(max_examples=count(100, short=5), deadline=None)
@given(trees)
def test_spans_have_what_the_rule_gives_them_and_add_up(tree: list[tuple[int, int, int]]) -> None:
    """Against the rule on a grid of 0.1 s: at each instant, all goes to the innermost open spans in equal parts."""
    bench = Bench(Board(steady(200), phase_s=0.03))
    bench.ledger.open()
    bounds: list[tuple[int, int]] = []
    parents: list[int | None] = []
    for number, (began, lasts, parent) in enumerate(tree):
        inside = 0 <= parent < number and bounds[parent][0] <= began < bounds[parent][1]
        parents.append(parent if inside else None)
        bounds.append((began, began + lasts))
    spans: dict[int, Span] = {}
    for tenths in range(11, 151):
        bench.to(tenths / 10 + 0.01)
        for number, (_, ended) in enumerate(bounds):
            if tenths == ended:
                spans[number].__exit__(None, None, None)
        for number, (began, _) in enumerate(bounds):
            if tenths == began:
                parent_number = parents[number]
                parent_span = None if parent_number is None else spans[parent_number]
                spans[number] = bench.ledger.span(str(number), parent=parent_span)
                spans[number].__enter__()

    bench.to(16)
    expected = dict.fromkeys(spans, 0.0)
    for tenths in range(151):
        active = {number for number, (began, ended) in enumerate(bounds) if began <= tenths < ended}
        for number in sorted(active, reverse=True):  # a span that ended is still around what is inside it
            outer = parents[number]
            while outer is not None:
                active.add(outer)
                outer = parents[outer]
        leaves = [number for number in active if not any(parents[inner] == number for inner in active)]
        for number in leaves:
            expected[number] += 20 / len(leaves)
    for number, span in spans.items():
        own_j = span.figure(alone=True).energy_j
        inside_j = [inner.energy_j for at, inner in spans.items() if parents[at] == number]
        if own_j is not None:
            assert own_j == pytest.approx(expected[number], abs=0.01)
        if own_j is not None and None not in inside_j:
            assert span.energy_j == pytest.approx(own_j + sum(joules or 0 for joules in inside_j), rel=1e-9)
    first = spans[min(spans, key=lambda number: bounds[number])]
    assert first.high_j is not None


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
    held, expected_j, n = 0, 0, 0
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
            held += not_none(figure.low_j) <= bench.backend.boards[0].used(began, ended) <= not_none(figure.high_j)
            expected_j += figure.energy_j is not None
            n += 1
            at = ended + 0.05
    assert n > count(300, short=15)
    assert held / n > 0.95
    assert expected_j / n > 0.3


def test_what_is_too_short_for_the_sensor_has_bounds_and_no_figure() -> None:
    bench = Bench(Board(square(50, 350, 0.02)))
    short = bench.span(2, 2.01)
    assert (short.energy_j, short.reason) == (None, "too short")
    assert not_none(short.low_j) <= bench.backend.boards[0].used(2, 2.01) <= not_none(short.high_j) < 10


def test_a_counter_that_begins_anew_is_a_gap_with_bounds() -> None:
    bench = Bench(Board(steady(200), resets=[4.0], shows_power=False))
    figure = bench.span(2, 10).figure()
    assert figure.energy_j == pytest.approx(1600, rel=0.03)
    assert 0.95 < not_none(figure.measured) < 1
    total = bench.span(10.5, 18.5).figure()
    assert (figure.high_j or 0) - (figure.low_j or 0) > (total.high_j or 0) - (total.low_j or 0) + 10


def test_a_lost_gpu_widens_the_interval_and_then_there_is_no_figure() -> None:
    board = Board(steady(200), lost=[(4, 7), (20, 30)])
    bench = Bench(board)
    figure = bench.span(2, 10).figure()
    assert figure.energy_j is not None
    assert not_none(figure.low_j) < 1000 < 1600 + 800 < not_none(figure.high_j)
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
        own_j = readings(at)
        return own_j | module | {"energy_mj": own_j["energy_mj"] * 3}

    board.readings = of_module  # type: ignore[method-assign]
    figure = Bench(board).span(2, 12).figure()
    assert figure.method == "power"
    assert figure.energy_j == pytest.approx(1500, rel=0.02)


# -- applications -----------------------------------------------------------------------------------------------


@pytest.fixture
def simulated() -> Iterator[Ledger]:
    yield ledger.open(backend="simulated", gpus=[0])
    ledger.close()


def test_real_bindings_and_a_gpu_that_falls_off_the_bus(nvml: NvmlLibrary) -> None:
    nvml.write("gpus 2", "model A100", "load 1 0.5")
    books = Ledger(gpus=[1])
    with books.span("work") as span:
        time.sleep(0.4)
    assert books.problem() is None
    figure = span.figure()
    assert figure.method == "counter"
    assert 5 < not_none(figure.high_j) <= 1.25 * 400 * (span.duration_s or 0) + 1e-3  # an A100 draws no more
    nvml.add("gpu 1 lost")
    with books.span("lost") as span:
        time.sleep(0.1)
    assert span.settle(3.0)
    assert span.reason == "mostly gaps"
    books.close()
    assert not nvml.setters()


def test_parents_follow_the_context(simulated: Ledger) -> None:
    result: dict[str, str | None] = {}

    async def task(name: str) -> None:
        with ledger.span(name) as span:
            result[name] = span.parent_id
            await asyncio.sleep(0.01)
            with ledger.span(name + " inside") as inside:
                result[name + " inside"] = inside.parent_id
                await asyncio.sleep(0)
            assert inside.parent_id == span.id

    async def both() -> None:
        with ledger.span("top") as top:
            await asyncio.gather(task("a"), task("b"))
        assert result["a"] == result["b"] == top.id

    asyncio.run(both())
    with ledger.span("main") as main, ThreadPoolExecutor(2) as pool:
        apart = pool.submit(_parent_there).result()
        copied = pool.submit(contextvars.copy_context().run, _parent_there).result()
    assert (apart, copied) == (None, main.id)
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
                good = (span.parent_id, span.trace_id) == (parent.id, parent.trace_id) and span.id != parent.id
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
    with books.budget(joules=5) as budget, books.span("hangs") as span:
        time.sleep(0.1)
        assert budget.left_j is None  # at once
    assert span.settle(0.05) is False
    assert span.reason == "no answer"
    hangs.set()
    books.close()


def test_threads_that_fail_together_tell_it_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(Board(steady(100)))
    bench.ledger.open()
    bench.backend.breaks = RuntimeError
    caplog.handler.addFilter(lambda _: not time.sleep(0.05))  # type: ignore[func-returns-value]
    threads = [threading.Thread(target=bench.ledger.look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [record.message for record in caplog.records] == ["the ledger cannot read the GPUs"]


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
    assert (bench.ledger.problem() is None) is (gpus is not None)
    assert bench.backend.gpus_read == (gpus or [])
    assert Ledger(backend="simulated").problem() is None  # which CUDA knows nothing of


@pytest.mark.long
def test_a_node_needs_no_more_than_the_packages_for_measuring() -> None:
    code = """
import time
from whorl import ledger
ledger.open(backend="simulated", gpus=[0])
with ledger.span("a") as a:
    time.sleep(0.25)
print(a.high_j is not None, [total.n for total in ledger.totals()])
"""
    done = run_without(NODE, code)
    assert (done.stdout, done.stderr) == ("True [1]\n", "")


def test_importing_the_ledger_loads_no_library() -> None:
    """It takes under 0.1 s then; numpy comes with the first span, and what writes Parquet with a store."""
    code = (
        "import sys\nfrom whorl import ledger\n"
        "heavy = {'numpy', 'pyarrow', 'polars', 'duckdb', 'scipy', 'click'}\n"
        "print(sorted(heavy.intersection(sys.modules)))\n"
        "ledger.open(backend='simulated')\n"
        "with ledger.span('a'):\n    pass\n"
        "print(sorted(heavy.intersection(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['numpy']"]


# -- identities ---------------------------------------------------------------------------------------------------

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


CONTINUED = (
    f"00-{TRACE}-{SPAN}-01",
    f"00-{TRACE}-{SPAN}-00",  # not sampled there
    f"00-{TRACE}-{SPAN}-ff",
    f" \t00-{TRACE}-{SPAN}-03 ",  # white space around a header is none of it; level 2 has a second flag
    f"01-{TRACE}-{SPAN}-01",
    f"cc-{TRACE}-{SPAN}-01-what-the-future-has",
    f"01-{TRACE}-{SPAN}-01-",
)
MALFORMED = (
    "", "other-1", None, b"00", 7, f"00-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-", f"00-{TRACE}-{SPAN}-1",
    f"00-{TRACE}-{SPAN}-01-", f"00-{TRACE}-{SPAN}-01-more", f"00-{TRACE}-{SPAN}-011", f"ff-{TRACE}-{SPAN}-01",
    f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE.upper()}-{SPAN}-01",
    f"00-{TRACE}-{SPAN.upper()}-01", f"00-{TRACE}-{SPAN}-0A", f"0A-{TRACE}-{SPAN}-01", f"0-{TRACE}-{SPAN}-01",
    f"00-{TRACE[:-1]}-{SPAN}-01", f"00-{TRACE}0-{SPAN}-01", f"00-{TRACE}-{SPAN[:-1]}g-01", f"00_{TRACE}_{SPAN}_01",
    f"01-{TRACE}-{SPAN}-01.more", f"01-{TRACE}-{SPAN}-011", f"cc-{TRACE}-{SPAN}", f"00-{TRACE}-{SPAN}-01\n",
    f"01-{TRACE}-{SPAN}-01-a\nb", f"00-{TRACE[:-1]}\u0661-{SPAN}-01",
)  # fmt: skip


@pytest.mark.usefixtures("simulated")
def test_a_span_continues_the_trace_of_a_traceparent(caplog: pytest.LogCaptureFixture) -> None:
    for header in CONTINUED:
        with ledger.span("around"), ledger.span("part", parent=header) as part, ledger.span("inside") as inside:
            assert inside.traceparent == f"00-{TRACE}-{inside.id}-01", header
        assert (part.trace_id, part.parent_id, inside.parent_id) == (TRACE, SPAN, part.id), header
    assert not caplog.records


@pytest.mark.usefixtures("simulated")
def test_a_malformed_traceparent_begins_a_new_trace(caplog: pytest.LogCaptureFixture) -> None:
    for header in MALFORMED:
        caplog.clear()
        parent: Any = header
        with ledger.span("around") as around, ledger.span("part", parent=parent) as part:
            pass
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", part.traceparent or ""), header
        assert part.trace_id not in (around.trace_id, TRACE, "0" * 32), header
        assert part.parent_id is None, header
        assert len(caplog.records) == (header is not None), header  # None is no header: no parent is asked for


# -- budgets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limits",
    [{"joules": 0}, {"joules": -5}, {"joules": math.nan}, {"joules": math.inf}, {"grams_per_hour": 0.0},
     {"joules": "9"}, {"grams_per_hour": -1, "joules": 5}, {}, {"joules": 5, "grams_per_kwh": -1},
     {"joules": 5, "grams_per_kwh": math.nan}],
)  # fmt: skip
def test_a_budget_that_is_no_number_above_0_is_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"budget of \w+ is a number above 0|needs a limit|number of 0 or more"):
        ledger.budget(**limits)


def test_a_budget_says_what_is_left_and_calls_back_once_when_joules_are_over() -> None:
    bench = Bench(Board(lambda t: np.where(t < 12, 200.0, 100.0)))
    bench.to(2)
    calls: list[tuple[float, str]] = []
    with bench.ledger.budget(
        joules=3000, grams_per_kwh=360, on_over=lambda budget, limit: calls.append((bench.clock.now_s, limit))
    ) as budget:
        bench.to(7)
        remaining = budget.left()
        assert remaining.joules.value == pytest.approx(2000, rel=0.02)
        assert not_none(remaining.joules.low) < 2000 < not_none(remaining.joules.high) < 3000
        assert budget.left_s == pytest.approx(10, rel=0.05)
        assert (remaining.watts.value, remaining.grams_per_hour.value) == pytest.approx((200, 72), rel=0.02)
        assert (budget.left_reason, budget.over) == (None, frozenset())
        bench.span(10, 21, "inside")
        assert budget.left_j == pytest.approx(3000 - 2000 - 900, rel=0.05)
        assert not calls
        bench.to(30)
        assert budget.over == {"joules"}
        assert budget.left_s == 0
    assert [limit for _, limit in calls] == ["joules"]
    assert calls[0][0] == pytest.approx(22, abs=0.5)
    assert budget.left_j == pytest.approx(3000 - 2000 - 1800, rel=0.05)
    assert budget.energy_j == pytest.approx(3800, rel=0.02)


def test_a_rate_that_is_over_is_told_each_time_that_it_crosses_and_failing_calls_are_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(Board(lambda t: np.where((t > 20) & (t < 40) | (t > 70), 300.0, 100.0), until=120))
    bench.to(2)
    calls: list[float] = []

    def over(budget: Any, limit: str) -> None:
        calls.append(bench.clock.now_s)
        assert limit == "grams_per_hour"
        raise RuntimeError("the application's own")

    with bench.ledger.budget(grams_per_hour=100, grams_per_kwh=500, on_over=over) as budget:
        bench.to(100)
        assert budget.over == {"grams_per_hour"}
        assert budget.left_j is None  # no limit of joules
    # 200 W: half of the last 10 s at 300 W
    assert calls == [pytest.approx(25, abs=1.5), pytest.approx(75, abs=1.5)]
    assert [record.message for record in caplog.records] == ["on_over of the budget 'budget' failed"] * 2


def test_a_budget_on_the_ledgers_own_thread_lets_on_over_use_the_ledger(simulated: Ledger) -> None:
    calls: list[float | None] = []
    called = threading.Event()

    def over(budget: Any, limit: str) -> None:
        with ledger.span("cleaning up"):
            calls.append(budget.left_j)
        called.set()

    with ledger.budget(joules=0.001, on_over=over):
        assert called.wait(30)
        time.sleep(0.2)
    assert len(calls) == 1
    assert not_none(calls[0]) < 0


def test_without_a_gpu_or_a_factor_a_budget_says_so_and_never_calls() -> None:
    books = Ledger(backend="none")
    with books.budget(joules=1, grams_per_hour=1, grams_per_kwh=1, on_over=lambda *_: pytest.fail("called")) as budget:
        pass
    assert (budget.left_j, budget.left_s, budget.left_reason) == (None, None, "no gpu")
    bench = Bench(Board(steady(200)))
    bench.to(2)
    with bench.ledger.budget(grams_per_hour=1, on_over=lambda *_: pytest.fail("called")) as budget:
        bench.to(20)
        assert budget.left_reason == "no factor"
        assert budget.left().watts.value == pytest.approx(200, rel=0.02)


def test_grams_are_by_the_settings_of_the_ledger(tmp_path: Path) -> None:
    lines = 'zone = "DE"\npue = 1.5\n[[factor]]\nzone = "DE"\ng_per_kwh = 400\nsource = "the site"\nyear = 2025\n'
    (tmp_path / "energy.toml").write_text(lines)
    bench = Bench(Board(steady(200)), settings=tmp_path / "energy.toml")
    bench.to(2)
    with bench.ledger.budget(grams_per_hour=100) as budget:
        bench.to(20)
        assert budget.left().grams_per_hour.value == pytest.approx(0.2 * 600, rel=0.02)
    assert budget.over == {"grams_per_hour"}


@pytest.mark.long
def test_a_quote_before_a_job_has_run_is_that_of_the_store(tmp_path: Path) -> None:
    from whorl.analysis.energy.quote import FutureJob, quote_workload
    from whorl.cli.answers.measuring import measure

    measure(tmp_path / "s", "gemm-fp32", backend="simulated", suite="quick", gpus=2, model="H100")
    start = datetime(2040, 1, 2, 3, tzinfo=UTC)
    here = Ledger(backend="none", store=tmp_path / "s")
    quote = here.quote("gemm-fp32", gpus=2, cap="60%", hour=start, time_s=600)
    job = FutureJob("gemm-fp32", gpus=2, cap="60%", hour=start, time_s=600)
    assert quote == quote_workload(Store.open(tmp_path / "s"), job)
    assert quote.s is not None
    assert quote.j is not None
    assert 0 < quote.s.low < quote.s.value < quote.s.high
    assert 0 < quote.j.low < quote.j.value < quote.j.high
    with pytest.raises(InputError, match=r"a quote is from the runs in a store: ledger.open\(store="):
        Ledger(backend="none").quote("gemm-fp32")


# -- totals and the store -----------------------------------------------------------------------------------------


def test_recursion_counts_once() -> None:
    bench = Bench(Board(steady(100)))
    bench.to(2)
    with bench.ledger.span("walk"):
        bench.span(2, 4, "walk")
    (total,) = bench.ledger.totals()
    assert total.n == 1
    assert total.figure().energy_j == pytest.approx(200, rel=0.02)


def test_spans_in_a_store_add_up_by_sql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        second_process = Bench(Board(steady(100)), names=["GPU-9"], store=tmp_path / "s")  # as in another process
        worker = second_process.span(3, 5, "worker", parent=request.traceparent)
        twin = Bench(Board(steady(200)), store=tmp_path / "s")  # on the same GPU as the first
        twin.span(2, 4, "twin", parent=worker.traceparent)
        for bench_beside in (second_process, twin):
            bench_beside.ledger.close()
    rows = {row["name"]: row for row in ask(tmp_path / "s", "SELECT * FROM spans")}
    assert rows["request"]["own_j"] + rows["prefill"]["own_j"] + rows["decode"]["own_j"] == pytest.approx(
        rows["request"]["energy_j"]
    )
    assert (rows["decode"]["error"], rows["prefill"]["parent"]) == ("ValueError", request.id)
    assert (rows["request"]["attributes"], rows["request"]["job_id"]) == ([("user", "a")], "4242")
    assert (rows["prefill"]["within_parent"], rows["worker"]["within_parent"]) == (True, False)
    assert {row["trace_id"] for row in rows.values()} == {request.trace_id}
    assert len({row["process"] for row in rows.values()}) == 3
    assert (rows["request"]["ended"] - rows["request"]["began"]).total_seconds() == pytest.approx(5)
    totals = {row["name"]: row for row in ask(tmp_path / "s", "SELECT * FROM spans_total")}
    assert (totals["prefill"]["spans"], totals["prefill"]["total_j"]) == (1, pytest.approx(300, rel=0.02))
    assert (totals["request"]["spans"], totals["request"]["twice"], totals["request"]["total_j"]) == (5, True, None)
    assert {row["state"] for row in totals.values()} == {"ended"}
    (total,) = ask(tmp_path / "s", "SELECT sum(own_j) AS j FROM spans WHERE name <> 'twin' GROUP BY trace_id")
    assert total["j"] == pytest.approx(1000 + 200, rel=0.02)


KILLED = """
import sys, time
from whorl import ledger
ledger.open(backend="simulated", gpus=[0], store=sys.argv[1])
began = time.time()
with ledger.span("job"):
    with ledger.span("warm up"):
        time.sleep(0.5)
    with ledger.span("train"):
        while True:
            print(time.time() - began, flush=True)
            time.sleep(0.05)
"""


@pytest.mark.long
def test_a_span_that_is_killed_loses_at_most_its_last_10_s_and_counts_once(tmp_path: Path) -> None:
    new_store(tmp_path / "s")
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True
    ) as process:
        lasted = next(seconds for line in not_none(process.stdout) if (seconds := float(line)) > 11.5)
        process.send_signal(signal.SIGKILL)
    query = "SELECT name, state, own_j, energy_j, reason, epoch(ended - began) AS s FROM spans_now ORDER BY began, name"
    before = ask(tmp_path / "s", query)
    Store.open(tmp_path / "s").compact(offline=True)  # seals what the dead process left
    rows = ask(tmp_path / "s", query)
    assert rows == before
    assert [(row["name"], row["state"]) for row in rows] == [("job", "open"), ("warm up", "ended"), ("train", "open")]
    job, warm_up, train = rows
    assert lasted - 10 < job["s"] <= lasted + 1
    assert job["energy_j"] == pytest.approx(sum(row["own_j"] for row in rows))
    assert train["own_j"] > warm_up["own_j"] > 0
    assert [row["n"] for row in ask(tmp_path / "s", "SELECT count(*) AS n FROM spans_open")] == [2]


def test_spans_that_are_open_are_stored_every_few_seconds_and_once_they_ended_count_once(tmp_path: Path) -> None:
    with copied_stores():
        bench = Bench(Board(steady(200)), store=tmp_path / "s")
        bench.to(2)
        with bench.ledger.span("job"):
            inside = bench.ledger.span("step")
            with inside:
                bench.to(14)
                rows = ask(tmp_path / "s", "SELECT * FROM spans_now ORDER BY began, name")
                assert [(row["name"], row["state"]) for row in rows] == [("job", "lost"), ("step", "lost")]  # of 2023
                assert [row["own_j"] for row in rows] == pytest.approx([0, 200 * 9], abs=400)
                assert rows[0]["energy_j"] == pytest.approx(rows[1]["energy_j"])
                (total,) = ask(tmp_path / "s", "SELECT * FROM spans_total WHERE name = 'job'")
                assert (total["state"], total["unfinished"], total["spans"]) == ("lost", 2, 2)
            bench.to(16)
        bench.ledger.close()
    rows = ask(tmp_path / "s", "SELECT * FROM spans_now ORDER BY began, name")
    assert [(row["name"], row["state"]) for row in rows] == [("job", "ended"), ("step", "ended")]
    assert sum(row["own_j"] for row in rows) == pytest.approx(200 * 14, rel=0.02)


def test_the_thread_sleeps_after_spans_and_stores_them_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_LINGER_S", 0.05), ("_RECORD_S", 0.5)):
        monkeypatch.setattr(f"whorl.jobs.ledger.book.{name}", seconds)
    simulated, looks = find_backend("simulated")(), list[float]()
    read = simulated.read

    def looked(*gpus: Any, **options: Any) -> Any:
        looks.append(time.monotonic())
        return read(*gpus, **options)

    monkeypatch.setattr(simulated, "read", looked)
    with copied_stores():
        books = Ledger(backend=simulated, gpus=[0], store=tmp_path / "s").open()
    stored: list[str] = []
    for name in ("first", "second"):  # the second begins just after a write, and ends long before the next one
        with books.span(name):
            pass
        until = time.monotonic() + 20
        while name not in stored and time.monotonic() < until:
            time.sleep(0.05)
            stored = [row["name"] for row in ask(tmp_path / "s", "SELECT name FROM spans")]
        assert name in stored
    time.sleep(0.3)
    before = len(looks)
    time.sleep(1)
    assert len(looks) == before
    books.close()


def test_spans_that_could_not_be_stored_are_stored_once_when_they_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with copied_stores():
        bench = Bench(Board(steady(200)), store=tmp_path / "s")
        with monkeypatch.context() as disk:
            disk.setattr("whorl.store.system.files.sync", fails)
            bench.span(2, 4)
            bench.to(20)
        bench.span(21, 22, "later")
        bench.ledger.close()
    assert [row["name"] for row in ask(tmp_path / "s", "SELECT name FROM spans ORDER BY began, name")] == [
        "work",
        "later",
    ]
    assert len([record for record in caplog.records if "spans wait to be stored" in record.message]) == 1
