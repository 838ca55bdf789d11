"""Replay a setting with every trace, policy, scheduler and seed, and compare the policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ...errors import InputError, WhorlError
from .comparison import Gain, gains
from .findings import Finding, findings
from .policies import find_policy
from .setting import Setting
from .study import Case, Replayed, cases, controls, run_all


@dataclass(frozen=True)
class Answered:
    """The results of a setting."""

    results: Sequence[Replayed]
    refused: Sequence[tuple[Case, WhorlError]]
    """Cases that cannot be replayed, and why."""
    gains: Sequence[Gain]
    """Of the traces as they are, over the seeds."""
    findings: Sequence[Finding]
    conditions: dict[str, str]
    notes: list[str]

    @property
    def reasons(self) -> list[str]:
        """Why cases were refused, each reason once, with the policies that it leaves out."""
        policies: dict[str, list[str]] = {}
        for case, error in self.refused:
            policies.setdefault(str(error), []).append(case.policy)
        return [
            why if all(name in why for name in names) else f"{why} (left out: {', '.join(dict.fromkeys(names))})"
            for why, names in policies.items()
        ]


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
    traces, policies = len(setting.study.traces), [*setting.policies, *setting.added]
    controlled = _controlled(setting, some)
    wanted = cases(traces, policies, setting.schedulers, some, record=record)
    wanted += controls(traces, policies, controlled, setting.schedulers, some)
    if progress is not None:
        progress(0, len(wanted))
    everything, left_out = run_all(setting.study, wanted, workers=workers, progress=progress)
    results = [one for one in everything if not (one.case.resampled or one.case.flat)]
    refused = [(case, error) for case, error in left_out if not (case.resampled or case.flat)]
    lost = [str(error) for case, error in left_out if case.resampled or case.flat]
    found = Answered(results, refused, [], [], conditions, [])
    if not results:
        raise InputError("; ".join(found.reasons))
    notes = [*setting.notes, *(note for one in results for note in one.notes), *found.reasons]
    notes += [
        f"{lost.count(why):,} replays for the findings (other jobs of a trace, or without scores) are left out: {why}"
        for why in dict.fromkeys(lost)
        if why not in {str(error) for _, error in refused}
    ]
    compared = [one for one in everything if one.case.resampled or one.case.seed == some[0]]
    return replace(
        found,
        gains=gains(results, setting.against),
        findings=findings(compared, setting.against, controlled),
        notes=list(dict.fromkeys(notes)),
    )


def _controlled(setting: Setting, seeds: Sequence[int]) -> list[str]:
    """The policies whose choices scores can change."""
    looking = [name for name in setting.policies if name not in setting.against and not find_policy(name).blind]
    return looking if looking and setting.study.informed(seeds) else []
