"""What an address asks of the page, and the answers, which may take long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ....analysis.energy.answers import ALL, LENGTHS, By, EnergySummary, summary
from ....analysis.energy.one_job import OneJob, job_offline
from ....analysis.energy.options import Ground, ground
from ....store.power_sensors import SensorError
from ..reading import Later

if TYPE_CHECKING:
    from ..reading import Reading
    from ..state import State

PATH = "energy"
TIMES = {
    "": "30 days, or less", "1h": "1 hour", "6h": "6 hours", "1d": "1 day", "7d": "7 days", "30d": "30 days", ALL: "all"
}  # fmt: skip
"""Lengths of time up to the last reading, as a person chooses them; "" is what an address without a time shows."""
BYS = {By.USER: "user", By.ACCOUNT: "account", By.JOB: "job", By.GPU: "GPU", By.NODE: "node", By.DAY: "day"}


@dataclass(frozen=True)
class EnergyAddress:
    """What the page shows."""

    state: State
    by: By
    notes: tuple[str, ...]
    """Sentences about what the address says and the page does not know."""

    def later(self, reading: Reading, *, again: bool = False) -> Later[EnergySummary] | Later[OneJob]:
        """The answer, as far as it is."""
        if self.state.job is not None:

            def grounds(cluster: str, sensor: SensorError) -> Ground:
                return reading.answer(ground, cluster, sensor, tables=("gpus", "runs", "results", "fingerprints"))

            return reading.later(job_offline, self.state.job, self.state.cluster, again=again, grounds=grounds)
        return later_summary(reading, self.state, again=again)


def address_of(state: State) -> EnergyAddress:
    """What an address asks for."""
    notes = []
    by = By.USER
    if state.by is not None:
        if state.by in set(By):
            by = By(state.by)
        else:
            notes.append(f"by={state.by[:40]!r} in the address is none of {', '.join(BYS)}: energy by user is shown.")
    if state.last is not None and state.last not in (*LENGTHS, ALL):
        lengths = f"{', '.join(LENGTHS)} and {ALL}"
        notes.append(f"last={state.last[:40]!r} in the address is none of {lengths}: it is left out.")
        state = replace(state, last=None)
    return EnergyAddress(state, by, tuple(notes))


def later_summary(reading: Reading, state: State, *, again: bool = False) -> Later[EnergySummary]:
    """The energy of the time that an address says, whoever used it."""
    return reading.later(summary, state.cluster, state.since, state.until, state.last, again=again)
