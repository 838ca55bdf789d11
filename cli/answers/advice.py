"""Where a job should run: the function of `whorl advise`, and the advice of the page Placement of `whorl dashboard`."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from ...analysis.placement import AdviceOptions, NodeEvidence, gpu_rows, node_rows
from ...analysis.verdicts.judgements import newest
from ...dashboards.answers.reply import Reply, RowList
from ...dashboards.documents.placement import PlacementAnswer, PlacementQuestion, SchedulerLines
from ...dashboards.words import many
from ...errors import InputError
from ...jobs import steering
from ...jobs.formats import lines_for
from ...jobs.steering import AdviceRequest, ScoredWorkload, Steering, steer
from ...store.hostlist import compress
from ..documents.advice import document, mapping

if TYPE_CHECKING:
    from ...analysis.placement import WorkloadGain
    from ...store import Store

_FORMS = (
    ("exclude", "Slurm: nodes to exclude, for sbatch --exclude="),
    ("nodelist", "Slurm: the best packed set, for sbatch --nodelist="),
    ("kubernetes", "Kubernetes: labels"),
    ("taints", "Kubernetes: taints"),
    ("weights", "Slurm: weights and features, for an administrator"),
)
_LONGEST = 60_000  # characters that a page shows


@wraps(steering.advise)
def advise(*arguments: Any, **options: Any) -> Reply[Steering]:
    """The advice, of the same arguments."""
    advised = steering.advise(*arguments, **options)
    return Reply(advised, mapping, document, rows=RowList("nodes", NodeEvidence))


class Advisor:
    """Gives advice, and keeps the scores of the last cluster: of 27,648 GPUs they take some 15 seconds."""

    def __init__(self) -> None:
        self._workloads: dict[tuple[str, str | None], ScoredWorkload] = {}
        self._scored_for: Hashable = None  # the store and the cluster of these
        self._lock = threading.Lock()

    def __call__(
        self, store: Store, version: Hashable, question: PlacementQuestion, say: Callable[[str], None]
    ) -> PlacementAnswer:
        """The answer to a question about a store. Raises WhorlError."""
        job = AdviceOptions(gpus=question.gpus)
        request = AdviceRequest(question.workload or "", job, question.cluster, question.model)
        with self._lock:
            scored, workloads = self._scored(store, (version, question.cluster), request, say)
        say(f"comparing sets of {many(question.gpus, 'GPU')}")
        advised = steer(scored, leave_out=question.without, placing=True, lenient=True)
        advised = replace(advised, workloads=workloads)
        advice = advised.advice
        judged = next((judgement for judgement in newest(store) if judgement.cluster == question.cluster), None)
        named = replace(question, workload=scored.request.workload)
        return PlacementAnswer(
            advice,
            document(advised),
            tuple(_lines(store, named, advised, form, title) for form, title in _FORMS),
            {kind.workload: node_rows(scored.scores, kind) for kind in advice.kinds or (advice,)},
            gpu_rows(scored.scores, scored.kinds, judged),
        )

    def _scored(
        self, store: Store, version: Hashable, request: AdviceRequest, say: Callable[[str], None]
    ) -> tuple[ScoredWorkload, tuple[WorkloadGain, ...]]:
        """The workload with its scores: those of all workloads of a cluster are made at once. Where none is named it
        is the one in which the job gains most, beside what it gains in the others."""
        if self._scored_for != version:
            self._scored_for, self._workloads = version, {}
        key = (request.workload, request.model)
        if key not in self._workloads:
            say("scoring every GPU by its runs; of 27,648 GPUs this takes some 15 seconds, once")
        scores = next((scored.scores for scored in self._workloads.values()), None)
        if not request.workload:
            scored, workloads = ScoredWorkload.gaining_most(store, request, scores, tell=say)
            self._workloads[scored.request.workload, request.model] = scored
            return scored, workloads
        if key not in self._workloads:
            self._workloads[key] = ScoredWorkload.of(store, request, scores, alone=False)
        return replace(self._workloads[key], request=request), ()


def _lines(store: Store, question: PlacementQuestion, advised: Steering, form: str, title: str) -> SchedulerLines:
    words = ["whorl", "advise", "--store", str(store.root), "--cluster", question.cluster]
    words += ["--workload", question.workload or "", *(["--model", question.model] if question.model else [])]
    words += ["--gpus", str(question.gpus), "--format", form]
    if question.without:  # of all formats only this one has an option for nodes that are avoided anyway
        words = [*words, "--set", f"and={compress(question.without)}"] if form == "exclude" else []
    command = shlex.join(words)
    try:
        lines, note = lines_for(form, advised, question.without)
    except InputError as error:
        return SchedulerLines(title, "", str(error), command)
    text = "\n".join(lines)
    if len(text) > _LONGEST:
        return SchedulerLines(title, "", f"{len(lines):,} lines: the command prints them", command)
    return SchedulerLines(title, text, note, command)
