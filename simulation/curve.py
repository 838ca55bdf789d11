"""The work that GPUs have done, step by step, from which times shorter than a control step are computed."""

from __future__ import annotations

import numpy as np

from .physics import Floats


class WorkCurve:
    """Work done at the end of each control step, of every GPU, from some step on.

    `begin`, then `note` after every step; the array that is noted has the shape (gpus,), in any unit of work.
    """

    def __init__(self, gpus: int) -> None:
        self._done = np.zeros((gpus, 256))
        self._from = 0

    def begin(self, step: int, worked: Floats) -> None:
        """Forget what was noted, and begin at a step."""
        self._from = step
        self._done[:, 0] = worked

    def note(self, step: int, worked: Floats, needed_from: int) -> None:
        """What is done at the end of a step that follows the last one; before `needed_from` may be dropped."""
        if step - self._from == self._done.shape[1]:
            self._make_room(needed_from)
        self._done[:, step - self._from] = worked

    def crossings(self, gpu: int, since: int, step: int, bounds: Floats) -> Floats:
        """When a GPU had done as much as each bound, in steps after `since`: on the lines between the noted steps.

        All bounds must lie between what was done at `since` and at `step`, and the GPU must have worked all the time.
        """
        curve = self._done[gpu, since - self._from : step - self._from + 1]
        return np.interp(bounds, curve, np.arange(len(curve), dtype=np.float64))

    def _make_room(self, needed_from: int) -> None:
        """Drop what is not needed any more, or take more room."""
        kept, width = self._done[:, needed_from - self._from :], self._done.shape[1]
        done = np.zeros((len(kept), 2 * width if kept.shape[1] > width // 2 else width))
        done[:, : kept.shape[1]] = kept
        self._done, self._from = done, needed_from
