"""Studies that are run in processes started for them. They import this module: it imports little."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from whorl.analysis.replay.jobs import Trace
from whorl.analysis.replay.study import Case, General, Replayed
from whorl.analysis.replay.world import World


@dataclass(frozen=True)
class Wrapped:
    """A study that does something else from a seed on."""

    study: General
    last: int
    """The last seed that is replayed as it is."""
    file: Path | None = None

    @property
    def traces(self) -> Sequence[Trace]:
        return self.study.traces

    def informed(self, seeds: Sequence[int]) -> bool:
        return self.study.informed(seeds)

    def run(self, case: Case) -> Replayed:
        return self.study.run(case)


class Dying(Wrapped):
    """Its process is killed at the last seed."""

    def run(self, case: Case) -> Replayed:
        if case.seed == self.last:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.study.run(case)


class Sleeping(Wrapped):
    """After the last seed it does not end, and may say in which process."""

    def run(self, case: Case) -> Replayed:
        if case.seed > self.last:
            if self.file is not None:
                self.file.with_suffix(f".{case.seed}").write_text(str(os.getpid()))
            time.sleep(600)
        return self.study.run(case)


class Lottery:
    """Fleets whose GPUs differ from seed to seed; the policies know all."""

    def draw(self, seed: int) -> World:
        return World.regular(4, 2, {"w": 1 + np.random.default_rng(seed).random(8)})
