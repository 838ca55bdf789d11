"""Advice for the page Placement of `whorl dashboard`: what `whorl advise --no-scheduler` says, and rows to draw."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

from ..analysis.placement.shown import gpu_rows, node_rows
from ..analysis.verdicts.judgements import newest
from ..dashboards.app.placement.told import Copied, Question, Told
from ..dashboards.table import many
from ..errors import InputError
from ..jobs.advice import lines_for, wishes
from ..jobs.advising import Steering, steer
from ..jobs.asked import Asked, Wanted
from ..store.hostlist import compress
from . import advise_report as report

if TYPE_CHECKING:
    from ..store import Store

_FORMS = (
    ("exclude", "Slurm: nodes to exclude, for sbatch --exclude="),
    ("nodelist", "Slurm: the best packed set, for sbatch --nodelist="),
    ("kubernetes", "Kubernetes: labels"),
    ("taints", "Kubernetes: taints"),
    ("weights", "Slurm: weights and features, for an administrator"),
)
_LONGEST = 60_000  # characters that a page shows


class Advisor:
    """Gives advice, and keeps the scores of the last cluster: of 27,648 GPUs they take about a minute."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, Asked] = {}
        self._of: Hashable = None  # the store and the cluster of what is kept
        self._lock = threading.Lock()

    def __call__(self, store: Store, version: Hashable, question: Question, say: Callable[[str], None]) -> Told:
        """What is told about a question. Raises WhorlError."""
        wanted = wishes(question.workload, cluster=question.cluster, model=question.model, gpus=question.gpus)
        with self._lock:
            asked = self._scored(store, version, question, wanted, say)
        say(f"comparing sets of {many(question.gpus, 'GPU')}")
        steering = steer(store, wanted, leave_out=question.without, placing=True, lenient=True, asked=asked)
        advice = steering.advice
        judged = next((one for one in newest(store) if one.cluster == question.cluster), None)
        return Told(
            advice,
            tuple(report.answer(steering, steering.wait(), steering.remarks)),
            tuple(_copied(store, question, steering, form, title) for form, title in _FORMS),
            {one.workload: node_rows(asked.found, one) for one in advice.kinds or (advice,)},
            gpu_rows(asked.found, asked.kinds, judged),
        )

    def _scored(
        self, store: Store, version: Hashable, question: Question, wanted: Wanted, say: Callable[[str], None]
    ) -> Asked:
        """What is asked, with its scores: those of all workloads of a cluster are made at once."""
        if self._of != (version, question.cluster):
            self._of, self._kept = (version, question.cluster), {}
        key = (question.workload, question.model)
        if key not in self._kept:
            say("scoring every GPU by its runs; of 27,648 GPUs this takes about a minute, once")
            found = next((one.found for one in self._kept.values()), None)
            self._kept[key] = Asked.of(store, wanted, found)
        return replace(self._kept[key], wanted=wanted)


def _copied(store: Store, question: Question, steering: Steering, form: str, title: str) -> Copied:
    words = ["whorl", "advise", "--store", str(store.root), "--cluster", question.cluster]
    words += ["--workload", question.workload, *(["--model", question.model] if question.model else [])]
    words += ["--gpus", str(question.gpus), "--format", form]
    if question.without:  # of all formats only this one has an option for nodes that are avoided anyway
        words = [*words, "--and", compress(question.without)] if form == "exclude" else []
    command = shlex.join(words)
    try:
        lines, note = lines_for(form, steering, question.without)
    except InputError as error:
        return Copied(title, "", str(error), command)
    text = "\n".join(lines)
    if len(text) > _LONGEST:
        return Copied(title, "", f"{len(lines):,} lines: the command prints them", command)
    return Copied(title, text, note, command)
