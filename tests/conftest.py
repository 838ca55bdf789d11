"""The simulated NVML library, for subprocesses and for this process: see tests/nvml_library.py."""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .nvml_library import NvmlLibrary, compile_library, load_here, unload_sessions


def _find_whorl() -> None:
    """Make this checkout `whorl`, for subprocesses too, where none is installed: a GPU node may have CuPy alone."""
    if importlib.util.find_spec("whorl") is not None:
        return
    folder = Path(tempfile.mkdtemp(prefix="whorl-checkout-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "whorl").symlink_to(Path(__file__).resolve().parents[1])
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


_find_whorl()


def _choose_examples() -> None:
    """Hypothesis tries the same examples every time, however slow the machine: a check that fails has a reason.

    To look for new ones: `pytest --hypothesis-profile=search`.
    """
    if importlib.util.find_spec("hypothesis") is None:  # a GPU node may do without it
        return
    from hypothesis import settings

    settings.register_profile("same", derandomize=True, deadline=None)
    settings.register_profile("search", max_examples=2000, deadline=None)
    settings.load_profile("same")


_choose_examples()


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """A shell's background jobs ignore Ctrl-C, and so would the collectors that the tests start and interrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def compiled_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, compiled once for all tests."""
    return compile_library(tmp_path_factory.mktemp("native").resolve())


@pytest.fixture
def nvml_library(compiled_nvml: Path, tmp_path: Path) -> Iterator[NvmlLibrary]:
    """The library with a control file of this test's own, for the processes that it starts."""
    library = NvmlLibrary(compiled_nvml, tmp_path)
    yield library
    library.write()  # whatever hangs may end


@pytest.fixture
def nvml(nvml_library: NvmlLibrary, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvmlLibrary]:
    """The same, loaded into this process."""
    load_here(nvml_library, monkeypatch)
    yield nvml_library
    nvml_library.write()
    unload_sessions()


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of restore files of this test, for this process and those that it starts."""
    folder = tmp_path / "state"
    monkeypatch.setenv("WHORL_STATE", str(folder))
    return folder
