"""Fixtures and hooks for all tests: the size of a run (sizes.py), folders built once, the simulated NVML library."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

# Workers and the processes that they start fill the cores: threads of each Polars would only wait for each other.
os.environ.setdefault("POLARS_MAX_THREADS", "1")
# No whorl.toml of this machine or user: os.devnull is a file without settings.
os.environ["WHORL_CONFIG"] = os.devnull

if TYPE_CHECKING:
    from whorl.store import Store

BuiltOnce = Callable[[str, Callable[[Path], object]], Path]


def _find_whorl() -> None:
    """Make this checkout importable as `whorl` if it is not installed (as on a GPU node), for subprocesses too."""
    if importlib.util.find_spec("whorl") is not None:
        return
    folder = Path(tempfile.mkdtemp(prefix="whorl-checkout-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "whorl").symlink_to(Path(__file__).resolve().parents[1])
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


_find_whorl()

# At Python's own threshold of 700 objects a fifth of the time of collecting tests went into searches for cycles.
gc.set_threshold(20_000, 20, 20)

from whorl.cli import BACKGROUND_THREADS  # noqa: E402 - the package is found above
from whorl.tests import sizes  # noqa: E402
from whorl.tests.building import build_once  # noqa: E402
from whorl.tests.dcgm_library import DcgmEngine, DcgmLibrary, compile_dcgm, real_engine  # noqa: E402
from whorl.tests.nvml_library import SONAME, NvmlLibrary, compile_library, load_here, unload_sessions  # noqa: E402


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="try more cases, and run the tests that take long")
    parser.addoption("--all", action="store_true", help="the same with every case: an hour and more")
    parser.addoption("--summary-to", metavar="FILE", help="write counts and durations as JSON, for tests/shards.py")
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files of tests/contract")


def pytest_configure(config: pytest.Config) -> None:
    sizes.choose("all" if config.getoption("--all") else "long" if config.getoption("--long") else "short")
    if importlib.util.find_spec("polars") is not None:  # a GPU node has only the packages that measure
        from whorl.dashboards.figures import drawing

        drawing.checked = True
    if config.getoption("hypothesis_profile", None):
        _choose_examples()


def pytest_collect_file(file_path: Path) -> None:
    """Load Hypothesis for files that use it: that takes as long as all else at the start of a process."""
    if file_path.match("test_*.py") and "from hypothesis import" in file_path.read_text():
        _choose_examples()


@functools.cache
def _choose_examples() -> None:
    """Make Hypothesis try the same examples every time, without a time limit: no test fails by chance.

    To look for new examples: `pytest --hypothesis-profile=search`.
    """
    if importlib.util.find_spec("hypothesis") is None:  # a GPU node may lack it
        return
    from hypothesis import settings

    settings.register_profile("same", derandomize=True, deadline=None, max_examples=sizes.count(60, short=10))
    settings.register_profile("search", max_examples=2000, deadline=None)
    settings.load_profile("same")


_STATUS = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_STATUS] = exitstatus


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End the process at once where a thread still reads for a page: Python would end it in C++ code, which aborts."""
    gc.unfreeze()
    if any(thread.name in BACKGROUND_THREADS for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash.get(_STATUS, 0))


_LEFT_OUT = pytest.StashKey[int]()
"""How many tests run with `--long` only."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if sizes.is_long():
        return
    test_seconds: dict[str, int] = {}
    left_out: list[pytest.Item] = []
    for entry in items:
        mark = entry.get_closest_marker("long")
        if mark is None:
            continue
        test = entry.nodeid.partition("[")[0]
        test_seconds[test] = test_seconds.get(test, 0) + 1
        if test_seconds[test] > mark.kwargs.get("short", 0):
            left_out.append(entry)
    if left_out:  # to skip one, with a report to the process that starts workers, takes ten milliseconds
        gone = set(left_out)
        items[:] = [test for test in items if test not in gone]
        config.hook.pytest_deselected(items=left_out)
    config.stash[_LEFT_OUT] = len(left_out)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What was skipped: a line for each reason. A line for each place would be hundreds."""
    stats = terminalreporter.stats
    reasons = Counter(report.longrepr[2].removeprefix("Skipped: ") for report in stats.get("skipped", []))
    reasons["long: runs with --long (make test-all)"] += config.stash.get(_LEFT_OUT, 0)
    reasons = +reasons
    if config.option.summary_to:
        _write_summary(Path(config.option.summary_to), stats, reasons)
        return
    if reasons:
        terminalreporter.section("skipped")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:>5}  {reason}")


def _write_summary(path: Path, stats: dict[str, list[Any]], reasons: Counter[str]) -> None:
    """For tests/shards.py, which adds up the summaries of several processes."""
    outcomes = {name: len(stats.get(name, [])) for name in ("passed", "failed", "error", "skipped")}
    reports = [report for name in ("passed", "failed") for report in stats.get(name, [])]
    slowest = sorted(((report.duration, report.nodeid) for report in reports), reverse=True)[:10]
    path.write_text(json.dumps({"outcomes": outcomes, "skip_reasons": reasons, "slowest": slowest}))


def pytest_collection_finish() -> None:
    """Search no more for cycles among what thousands of collected tests consist of: a search took 0.15 s each time."""
    gc.collect()
    gc.freeze()


_SWITCH_S = sys.getswitchinterval()


def pytest_runtest_logfinish() -> None:
    """Be as patient as before: a test that collects in this process leaves it, and threads, before all others."""
    if sys.platform == "linux" and os.getpriority(os.PRIO_PROCESS, 0) < 0:
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                os.setpriority(os.PRIO_PROCESS, int(thread.name), 0)
                os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))  # slices of usual length
        sys.setswitchinterval(_SWITCH_S)


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Accept Ctrl-C. A background job of a shell ignores it, and so would the collectors that tests interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def built_once(tmp_path_factory: pytest.TempPathFactory) -> BuiltOnce:
    """Makes a folder once for the tests of all processes (see shards.py), which only read it.

    `built_once("fleet", write_fleet)` returns the folder. The first call runs `write_fleet(folder)`; others wait.
    """
    built = Path(os.environ.get("WHORL_TESTS_BUILT") or tmp_path_factory.getbasetemp() / "built").resolve()
    return functools.partial(build_once, built)


@pytest.fixture(scope="session")
def compiled_nvml(built_once: BuiltOnce) -> Path:
    """The simulated NVML library, compiled once for all tests."""
    return built_once("native", compile_library) / SONAME


@pytest.fixture
def nvml_library(compiled_nvml: Path, tmp_path: Path) -> Iterator[NvmlLibrary]:
    """The library with this test's own control file, for processes that the test starts."""
    library = NvmlLibrary(compiled_nvml, tmp_path)
    yield library
    library.write()  # calls that hang return


@pytest.fixture
def nvml(nvml_library: NvmlLibrary, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvmlLibrary]:
    """The library, loaded into this process."""
    load_here(nvml_library, monkeypatch)
    yield nvml_library
    nvml_library.write()
    unload_sessions()


@pytest.fixture(scope="session")
def compiled_dcgm(built_once: BuiltOnce) -> Path:
    """The folder with the simulated DCGM, library and engine, compiled once for all tests."""
    return built_once("dcgm", compile_dcgm)


@pytest.fixture
def dcgm(
    compiled_dcgm: Path, nvml: NvmlLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DcgmLibrary]:
    """The simulated DCGM, over the simulated driver of this process: for embedded engines."""
    library = DcgmLibrary(compiled_dcgm, nvml, tmp_path)
    monkeypatch.setenv("WHORL_DCGM_CONTROL", str(library.control))
    yield library
    library.write()  # requests that hang return


@pytest.fixture
def stopped_engine(compiled_dcgm: Path, nvml_library: NvmlLibrary, tmp_path: Path) -> Iterator[DcgmEngine]:
    """The simulated nv-hostengine, not started: a test starts, stops and restarts it."""
    engine = DcgmEngine(compiled_dcgm, nvml_library, tmp_path)
    yield engine
    engine.write()
    engine.stop()


@pytest.fixture(
    params=["simulated", *([pytest.param("real", marks=pytest.mark.real_dcgm)] if real_engine() else [])],
)
def engine(request: pytest.FixtureRequest, stopped_engine: DcgmEngine) -> DcgmEngine:
    """An nv-hostengine that runs: ours, and NVIDIA's where it is installed, both over our driver."""
    if request.param == "real":
        stopped_engine.use_real()
    stopped_engine.start()
    return stopped_engine


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    from whorl.tests.stores import new_store

    return new_store(tmp_path / "store")


@pytest.fixture(scope="module")
def stores_are_copied() -> Iterator[None]:
    """Commands called in this process copy an empty store; those in processes of their own make it."""
    from whorl.tests.stores import copied_stores

    with copied_stores():
        yield


@pytest.fixture(scope="module")
def stores_stay_open() -> Iterator[None]:
    """Commands called in this process share one opened store of each path: to open one takes as long as its answers."""
    from whorl.tests.stores import open_stores

    with open_stores():
        yield


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the restore files of this test, in this process and those that it starts."""
    folder = tmp_path / "state"
    monkeypatch.setenv("WHORL_STATE", str(folder))
    return folder


@pytest.fixture
def few_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suite has two of its probes, for tests of something else."""
    from whorl.probes import catalogue

    suite = catalogue.suite
    monkeypatch.setattr(
        catalogue, "suite", lambda name: tuple(probe for probe in suite(name) if probe.name in ("idle", "gemm-fp32"))
    )
