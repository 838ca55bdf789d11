"""What tests ask of processes that are started for it. They import this module: it imports little."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np

from whorl.analysis.replay.fleet import Fleet


def twice(number: int) -> int:
    return 2 * number


def large(ballast: bytes, number: int) -> bytes:
    return ballast + bytes([number])


def die(at: int, number: int) -> int:
    if number == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def sleep(number: int) -> None:
    time.sleep(600 if number else 0)


def told(path: Path, number: int) -> None:
    path.with_suffix(f".{number}").write_text(str(os.getpid()))
    time.sleep(600)


class Lottery:
    """Fleets whose GPUs differ from seed to seed; the policies know all."""

    def draw(self, seed: int) -> Fleet:
        return Fleet.regular(4, 2, {"w": 1 + np.random.default_rng(seed).random(8)})
