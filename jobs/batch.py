"""A batch job that measures one whole node, and its script for a scheduler, made from a template.

A template is a text file in `templates/`, or one of the site's. In it:

{{name}}    is replaced by the value of that name, see `values`; a line whose value is missing is left out.
A line that has several values (`option`, `setup`) comes once for each; an indented one keeps its indentation.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError

TEMPLATES = Path(__file__).with_name("templates")
_PLACE = re.compile(r"\{\{\s*(\w*)\s*\}\}")


@dataclass(frozen=True, slots=True)
class BatchJob:
    """What every scheduler must know of a job; None and empty: not asked for."""

    name: str
    command: Sequence[str]
    """The words of the command that measures."""
    minutes: int
    """The limit of its wall time."""
    gpus: int
    """All GPUs of the node."""
    node: str | None = None
    """The node; None where the person who submits the script chooses it."""
    partition: str | None = None
    """The partition or queue."""
    qos: str | None = None
    account: str | None = None
    nice: int | None = None
    """How much lower than usual its priority is."""
    output: str | None = None
    """The file of its output."""
    setup: Sequence[str] = ()
    """Lines of shell before the command: `module load cuda`."""
    options: Sequence[str] = ()
    """Further options of the scheduler, one directive each: `--constraint=a100`."""


def values(job: BatchJob) -> Mapping[str, Sequence[str]]:
    """What a template can name, as lines; an empty sequence where a value is missing."""
    hours, minutes = divmod(job.minutes, 60)
    single = {
        "name": job.name,
        "node": job.node,
        "gpus": str(job.gpus),
        "minutes": str(job.minutes),
        "seconds": str(job.minutes * 60),
        "walltime": f"{hours:02d}:{minutes:02d}:00",
        "partition": job.partition,
        "qos": job.qos,
        "account": job.account,
        "nice": None if job.nice is None else str(job.nice),
        "output": job.output,
        "command": shlex.join(job.command),
    }
    found: dict[str, Sequence[str]] = {name: () if value is None else (value,) for name, value in single.items()}
    return found | {"setup": tuple(job.setup), "option": tuple(job.options)}


def schedulers() -> list[str]:
    """The schedulers that there are templates for."""
    return sorted(path.stem for path in TEMPLATES.iterdir() if path.is_file())


def render(scheduler: str, job: BatchJob, override: Path | None = None) -> str:
    """The script of a job, from the scheduler's template or from the file `override`.

    Raises InputError for a scheduler without a template, a file that cannot be read, and a name that is not known.
    """
    path = override
    if path is None:
        path = next((one for one in TEMPLATES.iterdir() if one.stem == scheduler and one.is_file()), None)
    if path is None:
        raise InputError(f"there is no template for {scheduler!r}; there are {', '.join(schedulers())}")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the template {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    given = values(job)
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        names = _PLACE.findall(line)
        for name in names:
            if name not in given:
                raise InputError(
                    f"{path}, line {number}: there is no value {{{{{name}}}}}; there are {', '.join(sorted(given))}"
                )
        lines += _filled(line, names, given)
    return "\n".join(lines) + "\n"


def _filled(line: str, names: Sequence[str], given: Mapping[str, Sequence[str]]) -> list[str]:
    """The line with its values: once, or as often as it has values; not at all where one is missing."""
    rows = max((len(given[name]) for name in names), default=1)
    if any(not given[name] for name in names):
        return []

    def filled(row: int) -> str:
        return _PLACE.sub(lambda place: given[place[1]][min(row, len(given[place[1]]) - 1)], line)

    return [filled(row) for row in range(rows)]
