"""Replay a setting with every trace, policy, scheduler and seed, and compare the policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...errors import InputError, WhorlError
from .comparison import Gain, gains
from .setting import Setting
from .study import Case, Replayed, cases, run_all


@dataclass(frozen=True)
class Answered:
    """The results of a setting."""

    setting: Setting
    results: Sequence[Replayed]
    refused: Sequence[tuple[Case, WhorlError]]
    """Cases that cannot be replayed, and why."""
    gains: Sequence[Gain]
    conditions: dict[str, str]
    notes: list[str]

    @property
    def reasons(self) -> list[str]:
        """Why cases were refused, each reason once."""
        return list(dict.fromkeys(str(error) for _, error in self.refused))


def answered(
    setting: Setting,
    *,
    seeds: int = 1,
    workers: int = 1,
    record: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Answered:
    """Replay a setting with `seeds` seeds, in `workers` processes. `record` keeps what figures need of each outcome.

    Raises InputError if no case can be replayed.
    """
    some = range(setting.seed, setting.seed + seeds)
    conditions = setting.conditions | {"seeds": f"{some[0]}" if len(some) == 1 else f"{some[0]} to {some[-1]}"}
    wanted = cases(
        len(setting.study.traces), [*setting.policies, *setting.added], setting.schedulers, some, record=record
    )
    if progress is not None:
        progress(0, len(wanted))
    results, refused = run_all(setting.study, wanted, workers=workers, progress=progress)
    found = Answered(setting, results, refused, [], conditions, [])
    if not results:
        raise InputError("; ".join(found.reasons))
    notes = [*setting.notes, *(note for one in results for note in one.notes), *found.reasons]
    return Answered(setting, results, refused, gains(results, setting.against), conditions, list(dict.fromkeys(notes)))
