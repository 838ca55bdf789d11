"""A user's script for sbatch: what it asks Slurm for, read from its lines, from options and from the environment."""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError, SchedulerError
from .forecast import JobShape, limit_seconds
from .scheduler import Partition
from .slurm import Slurm

_NOT_CHAINED = ("wrap", "test_only", "wait")  # with these sbatch submits another text, none, or does not come back


@dataclass(frozen=True, slots=True)
class UserScript:
    """A script, read."""

    path: Path
    header: str  # Its lines of comments at the top, in which sbatch looks for options, without the first
    text: str
    interpreter: str  # the words of the shell that run it
    shape: JobShape
    comment: str | None  # what the user has as the jobs' comment


def read_script(path: Path, slurm: Slurm, options: Sequence[str] = ()) -> UserScript:
    """Read a user's script and what it asks Slurm for; `options` of sbatch count more, and so do its variables.

    Raises InputError where it cannot be read, is no script, is an array or has no time limit.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the script {path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    first, _, body = text.partition("\n")
    if not first.startswith("#!"):
        raise InputError(f"{path} is no script that sbatch takes: its first line must be like #!/bin/bash")
    header = list(_header(body))
    words = [word for line in header if line.startswith("#SBATCH") for word in _words(path, line[7:])]
    written = _sbatch_options(words, {})
    chosen = _sbatch_options(options, {**vars(written), **_of_environment(slurm.environment)})
    if chosen.array or ":" in options or any(re.match(r"#SBATCH\s+(hetjob|packjob)", line) for line in header):
        raise InputError(f"{path} is an array or a job of several parts: a chain takes scripts of one job")
    for name in _NOT_CHAINED:
        if getattr(chosen, name):
            raise InputError(f"a chain cannot be submitted with --{name.replace('_', '-')}: leave it out")
    partitions = slurm.partitions()
    names = chosen.partition.split(",") if chosen.partition else []
    for name in names:
        if name not in partitions:
            raise InputError(f"{path} asks for partition {name}, but Slurm has only {', '.join(sorted(partitions))}")
    default = next((row.name for row in partitions.values() if row.default), None)
    partition = names[0] if names else default
    limit_s = _limit_s(path, chosen.time, None if partition is None else partitions[partition])
    least_nodes = re.match(r"\d+", chosen.nodes or "")
    nodes = int(least_nodes[0]) if least_nodes else _nodes_of_tasks(slurm, text, options)
    shape = JobShape(nodes=nodes, limit_s=limit_s, partition=partition)
    interpreter = shlex.join(first[2:].strip().split(None, 1)) or "/bin/sh"
    return UserScript(path.resolve(), "\n".join(header), text, interpreter, shape, chosen.comment)


def _header(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            return
        yield line


def _words(path: Path, line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise InputError(f"{path}: the line `#SBATCH{line}` has a quote without its end") from error


def _sbatch_options(words: Sequence[str], defaults: Mapping[str, object]) -> argparse.Namespace:
    """The options of sbatch that a chain needs to know, of all that are there."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
    for short, name in (("-t", "time"), ("-N", "nodes"), ("-p", "partition"), ("-a", "array")):
        parser.add_argument(short, f"--{name}")
    parser.add_argument("--comment")
    parser.add_argument("--wrap")
    parser.add_argument("--test-only", action="store_true")
    parser.add_argument("-W", "--wait", action="store_true")
    parser.set_defaults(**defaults)
    try:
        return parser.parse_known_args(list(words))[0]
    except argparse.ArgumentError as error:
        raise InputError(f"the options of sbatch cannot be read: {error}") from error


def _nodes_of_tasks(slurm: Slurm, text: str, options: Sequence[str]) -> int:
    """The nodes that Slurm would give to a script that asks for tasks or GPUs only; 1 where it does not say."""
    with contextlib.suppress(SchedulerError, InputError):  # the submission says what is wrong
        return slurm.test_nodes(options, text) or 1
    return 1


def _of_environment(variables: Mapping[str, str]) -> dict[str, str]:
    names = {"time": "SBATCH_TIMELIMIT", "partition": "SBATCH_PARTITION", "array": "SBATCH_ARRAY_INX"}
    return {option: variables[name] for option, name in names.items() if variables.get(name)}


def _limit_s(path: Path, text: str | None, partition: Partition | None) -> float:
    """The time limit of the script, else the one that its partition gives. Raises InputError."""
    if text:
        limit_s = limit_seconds(text)
    else:
        limit_s = 60 * min(partition.usual_min, partition.longest_min) if partition else math.inf
    if not math.isfinite(limit_s):
        raise InputError(f"{path} has no time limit, so there is nothing to chain: write `#SBATCH --time=24:00:00`")
    return limit_s
