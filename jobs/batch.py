"""A batch job that measures one whole node, and its script for a scheduler, made from a template.

A template is a text file in `templates/`, or one of the site's. In it:

{{name}}      is replaced by the value of that name, see `values`; a line whose value is missing is left out.
{{name|sh}}   is the value in one of the forms of FORMS, here as one word of the shell.
{{!name}}     is replaced by nothing; a line is left out where this value is *not* missing.
A line that has several values (`option`, `setup`) comes once for each; an indented one keeps its indentation.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path

from ..errors import InputError

_LONGEST = 63  # characters of a plain name, as in Kubernetes
TEMPLATES = Path(__file__).with_name("templates")
_PLACE = re.compile(r"\{\{\s*(!?)(\w*)\s*(?:\|\s*(\w*)\s*)?\}\}")


def plain_name(text: str, unfit: str) -> str:
    """A text as a name: what is `unfit` becomes a dash, and a name that is too long ends with a hash of the text."""
    name = re.sub(unfit, "-", text.lower()).strip("._-") or "none"
    if len(name) > _LONGEST:
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        name = f"{name[: _LONGEST - 9].rstrip('._-')}-{digest}"
    return name


FORMS: Mapping[str, Callable[[str], str]] = {
    "sh": shlex.quote,  # one word of the shell; Slurm, LSF and Flux read the quotes in their directives, too
    "json": lambda text: json.dumps(text, ensure_ascii=False),  # also a string of YAML
    "plain": lambda text: plain_name(text, "[^a-z0-9-]+"),  # lower-case letters, digits and dashes, at most 63
    "doubled": lambda text: text.replace("$", "$$"),  # Kubernetes turns $$ into $, and may replace $(NAME)
}


@dataclass(frozen=True, slots=True)
class BatchJob:
    """What every scheduler must know of a job; None and empty: not asked for."""

    name: str
    command: Sequence[str]  # the words of the command that measures
    minutes: int  # the limit of its wall time
    gpus: int  # all GPUs of the node
    node: str | None = None  # None where the person who submits the script chooses it
    partition: str | None = None  # the partition or queue
    qos: str | None = None
    account: str | None = None
    nice: int | None = None  # how much lower than usual its priority is
    output: str | None = None  # the file of its output
    setup: Sequence[str] = ()  # lines of shell before the command: `module load cuda`
    options: Sequence[str] = ()  # further options of the scheduler, one directive each: `--constraint=a100`
    store: str | None = None  # the folder that the command writes to
    comment: str | None = None  # what tells a campaign's jobs from those of another one of the same name


def values(job: BatchJob) -> Mapping[str, Sequence[str]]:
    """What a template can name, as lines; an empty sequence where a value is missing. Raises InputError."""
    single = {field.name: getattr(job, field.name) for field in fields(job)} | {
        "seconds": job.minutes * 60,
        "walltime": f"{job.minutes // 60:02d}:{job.minutes % 60:02d}:00",
        "command": shlex.join(job.command),
        "label": f"{job.name} {job.comment}" if job.comment else job.name,  # for schedulers without comments
    }
    lines: dict[str, Sequence[str]] = {"setup": single.pop("setup"), "option": single.pop("options")}
    lines |= {name: () if value is None else (str(value),) for name, value in single.items()}
    for name, texts in lines.items():
        for text in texts:
            if not text.isprintable():
                raise InputError(
                    f"{text!r} cannot stand in a script ({name}): write one line without control characters"
                )
    return lines


def schedulers() -> list[str]:
    """The schedulers that there are templates for."""
    return sorted(path.stem for path in TEMPLATES.iterdir() if path.is_file())


def render(scheduler: str, job: BatchJob, override: Path | None = None) -> str:
    """The script of a job, from the scheduler's template or from the file `override`.

    Raises InputError for a scheduler without a template, a file that cannot be read, a name that is not known, and a
    value with a line break.
    """
    lines, script = values(job), []
    path, text = _template(scheduler, override)
    for number, line in enumerate(text.splitlines(), start=1):
        for _, name, form in _PLACE.findall(line):
            if name not in lines:
                raise InputError(
                    f"{path}, line {number}: there is no value {{{{{name}}}}}; there are {', '.join(sorted(lines))}"
                )
            if form and form not in FORMS:
                raise InputError(f"{path}, line {number}: there is no form |{form}; there are {', '.join(FORMS)}")
        script += _filled(line, lines)
    return "\n".join(script) + "\n"


def unused(scheduler: str, names: Sequence[str], override: Path | None = None) -> list[str]:
    """Which of these values the template does not name: to ask for them changes nothing."""
    places = {name for _, name, _ in _PLACE.findall(_template(scheduler, override)[1])}
    return [name for name in names if name not in places]


def _template(scheduler: str, override: Path | None) -> tuple[Path, str]:
    """The file of a template, and its text."""
    path = override or next((path for path in TEMPLATES.iterdir() if path.stem == scheduler and path.is_file()), None)
    if path is None:
        raise InputError(f"there is no template for {scheduler!r}; there are {', '.join(schedulers())}")
    try:
        return path, path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the template {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _filled(line: str, lines: Mapping[str, Sequence[str]]) -> list[str]:
    """The line with its values: once, or as often as it has values; not at all where one is missing."""
    places = _PLACE.findall(line)
    if any(bool(lines[name]) is bool(absent) for absent, name, _ in places):
        return []

    def text_of(place: re.Match[str], row: int) -> str:
        absent, name, form = place.groups()
        text = "" if absent else lines[name][min(row, len(lines[name]) - 1)]
        return FORMS[form](text) if form else text

    rows = max((len(lines[name]) for absent, name, _ in places if not absent), default=1)
    return [_PLACE.sub(partial(text_of, row=row), line) for row in range(rows)]
