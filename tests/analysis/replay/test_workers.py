"""Work spread over several processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import pytest

from whorl.analysis.replay.workers import answers
from whorl.errors import WhorlError
from whorl.tests.analysis.replay.asked import die, large, sleep, twice

ROOT = Path(__file__).parents[3]
LARGE = 4 << 20  # bytes: more than any pipe holds, so that sending it takes turns


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))  # the processes import this module


def test_nothing_asked_starts_nothing() -> None:
    assert list(answers(twice, [], 4)) == []


@pytest.mark.long
def test_answers_may_be_larger_than_a_pipe() -> None:
    found = dict(answers(partial(large, bytes(LARGE)), range(5), 2))
    assert {number: (len(answer), answer[-1]) for number, answer in found.items()} == {
        number: (LARGE + 1, number) for number in range(5)
    }


@pytest.mark.long
def test_a_killed_process_is_said() -> None:
    with pytest.raises(WhorlError, match="a process of the replay was killed"):
        list(answers(partial(die, 3), range(9), 2))
    assert active_children() == []


@pytest.mark.long
def test_who_stops_listening_leaves_no_process() -> None:
    found = answers(sleep, [0, 1, 1, 1], 2)
    assert next(found) == (0, None)
    assert len(active_children()) == 2
    del found
    assert active_children() == []


KILLED = """
import sys
from functools import partial
from pathlib import Path
from tests.analysis.replay.asked import told
from whorl.analysis.replay.workers import answers

if __name__ == "__main__":
    list(answers(partial(told, Path(sys.argv[1])), [0, 1], 2))
"""


@pytest.mark.long
def test_processes_end_with_the_one_that_asks(tmp_path: Path) -> None:
    """Killed outright, it cannot end them."""
    script, pids = tmp_path / "script.py", [tmp_path / "pid.0", tmp_path / "pid.1"]
    script.write_text(KILLED)
    path = os.pathsep.join([str(ROOT), *sys.path])
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "pid")], env=os.environ | {"PYTHONPATH": path}
    ) as child:
        try:
            until(lambda: all(pid.exists() and pid.read_text() for pid in pids))
        finally:
            child.kill()
    until(lambda: not any(runs(int(pid.read_text())) for pid in pids))


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def runs(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody asked for has no command line."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except (FileNotFoundError, ProcessLookupError):
        return False


INTERRUPTED = """
import signal, threading, time
from tests.analysis.replay.asked import sleep
from whorl.analysis.replay.workers import answers

if __name__ == "__main__":
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # so the system gives it to that thread
    try:
        for number, _ in answers(sleep, [0, 1], 1):
            print(number, flush=True)
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.long
def test_an_interrupt_that_another_thread_is_given(tmp_path: Path) -> None:
    """As the system may do: the wait of the main thread is then not ended by the signal."""
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    path = os.pathsep.join([str(ROOT), *sys.path])
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": path}
    ) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "0\n"
            child.send_signal(signal.SIGINT)
            out, _ = child.communicate(timeout=60)
        finally:
            child.kill()
    assert (child.returncode, out) == (0, "interrupted\n")
