"""Runs verbs as a person types them, reduces what they print to what a program may rely on, and compares it with files.

Kept are exit statuses, keys, codes, ids, counts, numbers and fixed times. Left out are sentences (`SENTENCES`), what
the machine and its clock decide (`MACHINE`), and paths. A long list is reduced to its first and last row and to
figures of its columns. Numbers agree to a relative 1e-9.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import socket
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from whorl import Store
from whorl.cli import cli

GOLDEN = Path(__file__).parent / "golden"
TOLERANCE = 1e-9
"""Relative, of numbers."""
DUST = 1e-12
"""Absolute, of numbers: what is left where equal floats are subtracted."""
LONGEST_LIST = 6
"""Longer lists are kept as their first and last row and the figures of their columns."""
TEXT, CLOCK, HOST = "(text)", "(clock)", "(host)"
"""What stands for a sentence, for a time of the machine's clock, and for the machine's name."""

SENTENCES = frozenset(
    {
        "action", "break_even", "conditions", "description", "detail", "do", "durability", "looks", "meaning", "needs",
        "notes", "passive", "prefer_reason", "reasons", "reference", "references", "remark", "remarks", "row", "says",
        "sensor", "sensors", "sentence", "stale", "stresses", "unfit",
    }
)  # fmt: skip
"""Keys whose values are made for people. Only whether there is one is compared."""
CODE_WORDS = 5
"""A text of more words is a sentence, whatever its key; a command (`COMMANDS`) is not."""
COMMANDS = frozenset({"", "answer", "command", "commands"})
MACHINE = frozenset(
    {
        "age_days", "age_s", "bytes", "free", "host", "newest_days", "oldest_days", "pid", "removed_at", "versions",
        "wall_s", "written",
    }
)  # fmt: skip
"""Keys whose values depend on the machine or on the time of day: left out."""

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")
_STAMP = re.compile(r"\d{8}T\d{6}(\.\d+)?Z")
_NEAR = timedelta(days=2)


@dataclass(frozen=True)
class Output:
    """What a verb did: its exit status and what it printed."""

    arguments: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    def json(self) -> Any:
        """The document that the verb printed."""
        return json.loads(self.stdout)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the CSV that the verb printed: numbers as numbers, an empty field as None."""
        return [{name: _number(text) for name, text in row.items()} for row in csv.DictReader(io.StringIO(self.stdout))]


class Copies:
    """Copies of a folder with a store in it, one after the other at one path.

    The views of a store name its path: they are made anew where a copy is opened at another one, which takes longer
    than most commands.
    """

    def __init__(self, source: Path, place: Path) -> None:
        self._pristine, self._place = place / "pristine", place / "copy"
        shutil.copytree(source, self._place)
        Store.open(self._place / "store")
        shutil.copytree(self._place, self._pristine)

    def next(self) -> Path:
        """The folder, as it was at first."""
        shutil.rmtree(self._place)
        return Path(shutil.copytree(self._pristine, self._place))


def run(*arguments: object, stdin: str | None = None) -> Output:
    """Run `whorl ARGUMENTS` in this process. What whorl did not expect is raised here, as a person sees a traceback."""
    words = tuple(str(word) for word in arguments)
    result = CliRunner().invoke(cli, words, input=stdin, prog_name="whorl")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Output(words, result.exit_code, result.stdout, result.stderr)


def done(*arguments: object) -> Output:
    """The same for a step that must succeed."""
    answer = run(*arguments)
    assert answer.status == 0, f"whorl {' '.join(answer.arguments)}: status {answer.status}: {answer.stderr}"
    return answer


@dataclass(frozen=True)
class Reduction:
    """How an answer is reduced. `paths`: what stands for a path that differs from run to run, by that path."""

    paths: Mapping[str, str] = field(default_factory=dict)
    longest_list: int = LONGEST_LIST

    def __call__(self, value: Any) -> Any:
        """The same value without sentences, clocks, paths and long lists."""
        return self._shortened(self._cleaned(value))

    def _cleaned(self, value: Any, key: str = "") -> Any:
        if key in SENTENCES and value:
            return TEXT
        if isinstance(value, dict):
            return {
                (f"{TEXT} {place}" if _is_sentence(name) else name): self._cleaned(part, name)
                for place, (name, part) in enumerate(value.items())
                if name not in MACHINE
            }
        if isinstance(value, list | tuple):
            return [self._cleaned(part, key) for part in value]
        if isinstance(value, str):
            for path, symbol in self.paths.items():
                value = value.replace(path, symbol)
            if _is_sentence(value) and key not in COMMANDS:
                return TEXT
            if value == socket.gethostname():
                return HOST
            return CLOCK if _is_recent(value) else _STAMP.sub(CLOCK, value)
        if isinstance(value, int) and abs(value / 1e9 - datetime.now(UTC).timestamp()) < _NEAR.total_seconds():
            return CLOCK
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        return value

    def _shortened(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._shortened(part) for name, part in value.items()}
        if not isinstance(value, list):
            return value
        if len(value) <= self.longest_list:
            return [self._shortened(part) for part in value]
        return {
            "length": len(value),
            "first": self._shortened(value[0]),
            "last": self._shortened(value[-1]),
            "columns": _columns(value),
        }


def _is_sentence(text: str) -> bool:
    return len(text.split()) > CODE_WORDS


def _is_recent(text: str) -> bool:
    """Whether the text is a time within two days of the present."""
    if not _TIME.fullmatch(text):
        return False
    at = datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text))
    return abs((at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.now(UTC)) < _NEAR


def _columns(rows: list[Any]) -> dict[str, Any]:
    """The figures of each column."""
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in _leaves(row, ""):
            columns.setdefault(name, []).append(value)
    return {name or "value": figures(values) for name, values in columns.items()}


def _leaves(value: Any, name: str) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _leaves(part, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        yield f"{name}[]", len(value)
        for part in value:
            yield from _leaves(part, f"{name}[*]")
    else:
        yield name, value


def figures(values: list[Any]) -> dict[str, Any]:
    """How many values there are, and nulls; of numbers extremes and sum; of texts how many differ, and their order."""
    present = [value for value in values if value is not None]
    row: dict[str, Any] = {"n": len(values)}
    if len(present) < len(values):
        row["nulls"] = len(values) - len(present)
    numbers = [value for value in present if isinstance(value, int | float) and not isinstance(value, bool)]
    if numbers:
        row |= {"min": min(numbers), "max": max(numbers), "sum": math.fsum(numbers)}
    texts = [str(value) for value in present if isinstance(value, str | bool)]
    if texts:
        counts = {text: texts.count(text) for text in set(texts)} if len(set(texts)) <= 4 else None
        row["distinct"] = dict(sorted(counts.items())) if counts is not None else len(set(texts))
        if counts is None or len(counts) > 1:
            row["order"] = zlib.crc32("\n".join(texts).encode())
    return row


def _number(text: str | None) -> Any:
    if text is None or not text:
        return None
    try:
        return int(text) if re.fullmatch(r"-?\d{1,18}", text) else float(text)
    except ValueError:
        return text


def differences(golden: Any, answer: Any, at: str = "", scale: float = 0.0) -> list[str]:
    """Where the answer is not as the golden file has it, a line for each place."""
    if isinstance(golden, dict) and isinstance(answer, dict):
        if "sum" in golden and "n" in golden:
            scale = golden["n"] * max(abs(golden["min"]), abs(golden["max"]))
        lines = [f"{at}.{key}: missing" for key in golden if key not in answer]
        lines += [f"{at}.{key}: new" for key in answer if key not in golden]
        for key in golden:
            if key in answer:
                lines += differences(golden[key], answer[key], f"{at}.{key}", scale if key == "sum" else 0.0)
        if not lines and list(golden) != list(answer):
            lines.append(f"{at}: the keys have another order")
        return lines
    if isinstance(golden, list) and isinstance(answer, list):
        if len(golden) != len(answer):
            return [f"{at}: {len(golden)} entries, now {len(answer)}"]
        return [
            line for place, pair in enumerate(zip(golden, answer, strict=True)) for line in
            differences(*pair, f"{at}[{place}]")
        ]  # fmt: skip
    if _same(golden, answer, scale):
        return []
    return [f"{at}: {golden!r}, now {answer!r}"]


def _same(golden: Any, answer: Any, scale: float) -> bool:
    if isinstance(golden, bool) or isinstance(answer, bool) or not isinstance(golden, int | float):
        return type(golden) is type(answer) and golden == answer
    if not isinstance(answer, int | float):
        return False
    return math.isclose(golden, answer, rel_tol=TOLERANCE, abs_tol=TOLERANCE * scale + DUST)


def written(value: Any, indent: str = "") -> str:
    """The value as JSON for a golden file: a line for each part that fits one."""
    line = json.dumps(_rounded(value), ensure_ascii=False)
    if len(line) + len(indent) <= 116 or not isinstance(value, dict | list) or not value:
        return line
    deeper = indent + " "
    if isinstance(value, dict):
        parts = [f"{json.dumps(name, ensure_ascii=False)}: {written(part, deeper)}" for name, part in value.items()]
        return "{\n" + ",\n".join(deeper + part for part in parts) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + written(part, deeper) for part in value) + f"\n{indent}]"


def _rounded(value: Any) -> Any:
    """Floats to 12 digits: a thousandth of the tolerance."""
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, dict):
        return {name: _rounded(part) for name, part in value.items()}
    return [_rounded(part) for part in value] if isinstance(value, list) else value


Golden = Callable[[str, Any], None]
"""`golden("fleet/verdicts", value)` compares the value with the file of that name."""
InputFolder = Callable[[str], Path]
"""`input_folder("fleet")` is the folder of an input."""


def compare(name: str, value: Any, *, update: bool) -> None:
    """Compare a reduced value with `golden/NAME.json`, or write that file."""
    path = GOLDEN / f"{name}.json"
    if update:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(written(value) + "\n", encoding="utf-8")
        return
    assert path.is_file(), f"there is no {path.relative_to(GOLDEN)}: run pytest tests/contract --update-golden"
    lines = differences(json.loads(path.read_text(encoding="utf-8")), json.loads(json.dumps(value)))
    difference = "\n".join(lines[:30])
    assert not lines, (
        f"{len(lines)} differences from golden/{name}.json:\n{difference}\n"
        "If this is meant: pytest tests/contract --update-golden, and commit the file with the reason."
    )
