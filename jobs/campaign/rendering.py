"""The script of a job that measures one whole node, for any scheduler: to read, to change, and to submit by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ..batch import render, unused
from .asking import Asked, choose
from .inventory import PREFIX, Target
from .planning import How, batch_job

ONE_EACH = ("partition", "qos", "account", "output", "setup", "option")
"""What may be asked for, and may be unknown to a scheduler."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script, and what was asked for that its scheduler's template does not use."""

    text: str
    left_out: tuple[str, ...]


def script(store: str | Path, asked: Asked, scheduler: str, *, how: How, gpus: int, node: str | None = None) -> Script:
    """The script that measures a node with so many GPUs; `node` None: the scheduler, or who submits it, chooses one.

    No scheduler is asked, and no store is opened. `how.output` is the file of the job's output here. Raises InputError.
    """
    request = choose(None, asked)
    job = batch_job(Path(store), request, Target(node or "node", gpus, "", idle=True, partition=asked.partition), how)
    name = job.name if node else f"{PREFIX}:{request.campaign}"
    job = replace(job, name=name, node=node, output=None if how.output is None else str(how.output))
    given = {
        "partition": job.partition,
        "qos": job.qos,
        "account": job.account,
        "output": job.output,
        "setup": job.setup,
        "option": job.options,
    }
    left_out = unused(scheduler, [one for one in ONE_EACH if given[one]], how.template)
    return Script(render(scheduler, job, how.template), tuple(left_out))
