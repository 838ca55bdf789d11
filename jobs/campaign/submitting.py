"""One job to Slurm: its number, or whether to try again later."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ...errors import SchedulerError
from ..slurm import Slurm, message_of

_LATER = re.compile(
    r"job submit limit|submit limit|temporarily unable|try again|timed out|MaxSubmit|MaxJobCount|Zero Bytes|"
    r"in a state of transition|slow it down|Job limit|could not be processed at this time",
    re.IGNORECASE,
)
# Variables of sbatch that would win over the script's own lines; SBATCH_ACCOUNT and others stay as the user set them.
_OVERRIDES = (
    "SBATCH_ARRAY",
    "SBATCH_EXCLUSIVE",
    "SBATCH_GPU",
    "SBATCH_GRES",
    "SBATCH_JOB_NAME",
    "SBATCH_MEM",
    "SBATCH_NO_REQUEUE",
    "SBATCH_OPEN_MODE",
    "SBATCH_OUTPUT",
    "SBATCH_PARTITION",
    "SBATCH_TIMELIMIT",
    "SBATCH_WAIT",
)
_NODE = re.compile(
    r"node configuration is not available|Invalid node name|node name specified|nodes? .* not (?:available|in)",
    re.IGNORECASE,
)


class Refusal(StrEnum):
    """Why Slurm did not take a job."""

    LATER = "later"
    """A limit is reached, or the controller is busy: the same job may be taken later."""
    UNSURE = "unsure"
    """No answer came in time: the job may be in the queue all the same."""
    NODE = "node"
    """The node cannot run it."""
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a submission."""

    job: str | None
    refusal: Refusal | None = None
    says: str = ""


def submit(slurm: Slurm, script: str, keep: Sequence[int] = ()) -> Answer:
    """Submit a script. Files of the numbers `keep` stay open in sbatch: a lock outlives this process with it.

    Raises SchedulerError only where there is no Slurm.
    """
    try:
        done = slurm.ask("sbatch", "--parsable", text=script, keep=keep, without=_OVERRIDES)
    except SchedulerError as error:
        if error.absent:
            raise
        return Answer(None, Refusal.UNSURE, str(error))
    if done.returncode == 0:
        return Answer(done.stdout.strip().splitlines()[-1].partition(";")[0])
    says = message_of(done.stderr) or message_of(done.stdout) or f"status {done.returncode}"
    if re.search(r"timed out|Zero Bytes", says, re.IGNORECASE):
        return Answer(None, Refusal.UNSURE, says)
    kinds = ((_LATER, Refusal.LATER), (_NODE, Refusal.NODE))
    return Answer(None, next((kind for words, kind in kinds if words.search(says)), Refusal.OTHER), says)
