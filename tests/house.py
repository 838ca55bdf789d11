"""Measures what a reader of the code meets, room by room: vague names, long lists of arguments, homonyms, circles.

    python tests/house.py            prints the measures
    python tests/house.py --lower    writes them into house.json, where they are lower than what stands there

tests/test_house.py fails where a measure is above house.json.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMITS = Path(__file__).with_suffix(".json")
_WORDS = """
    alike asked begun both data each every found given how item its kept known left like looks made many meant mine more
    named of one ones other ours own placed rest said seen shown some spoken taken theirs there told value2 wanted way
    what when where who whole
"""
VAGUE = frozenset(_WORDS.split())
"""Pronouns, adverbs and participles that do not say what a variable holds."""
MANY_PARAMETERS = 6

Measures = dict[str, dict[str, float]]


@dataclass
class SourceFile:
    """What stands in one file."""

    room: str
    names: int = 0
    vague: int = 0
    many_parameters: int = 0
    classes: list[str] = field(default_factory=list)
    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    sentences: list[int] = field(default_factory=list)
    """Lines that look into a sentence."""


def read_files(root: Path = ROOT, *, tests: bool = True) -> dict[str, SourceFile]:
    """What stands in each Python file that git tracks, with those of the tests or without them."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "*.py"], capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.splitlines() if tests or not name.startswith("tests/")]
    return {name: _read(root, name) for name in names if (root / name).exists()}


def measure(files: dict[str, SourceFile]) -> Measures:
    """For each room: `vague_pct` of its names, functions of `many_parameters`, `homonyms`, files in `circles`."""
    class_names = Counter(name for file in files.values() if file.room != "tests" for name in file.classes)
    circular = _in_circles(files)
    measures: Measures = {}
    for room in sorted({file.room for file in files.values()}):
        members = {name: file for name, file in files.items() if file.room == room}
        names = sum(file.names for file in members.values())
        measures[room] = {
            # rounded up to a tenth of a percent
            "vague_pct": -(-1000 * sum(file.vague for file in members.values()) // max(1, names)) / 10,
            "many_parameters": sum(file.many_parameters for file in members.values()),
            "homonyms": sum(
                class_names[name] > 1 for file in members.values() for name in file.classes if room != "tests"
            ),
            "circles": sum(name in circular for name in members),
        }
    return measures


def _read(root: Path, name: str) -> SourceFile:
    file = SourceFile(name.partition("/")[0] if "/" in name else "root")
    for node in _nodes(ast.parse((root / name).read_text())):
        kind = type(node)  # isinstance() takes twice the time, a million times
        if kind is ast.Name:
            assert isinstance(node, ast.Name)
            if type(node.ctx) is ast.Store:
                file.names, file.vague = file.names + 1, file.vague + (node.id in VAGUE)
        elif kind in _READING:
            if reads_sentence(node):
                file.sentences.append(node.lineno)  # type: ignore[attr-defined]
        elif kind not in _COUNTED:
            continue
        elif isinstance(node, ast.arg):
            file.names, file.vague = file.names + 1, file.vague + (node.arg in VAGUE)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            bound_to = bool(node.args.args) and node.args.args[0].arg in ("self", "cls")
            file.many_parameters += len(parameters) - bound_to > MANY_PARAMETERS
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            file.classes.append(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            file.imports.append(node)
    return file


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node of a tree with a place in the text, in any order: `ast.walk` takes three times as long."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for part in node.__dict__.values():
            if type(part) is list:
                waiting += [inner for inner in part if hasattr(inner, "_fields")]
            elif hasattr(part, "lineno") or type(part) is ast.arguments:
                waiting.append(part)


_COUNTED = {ast.arg, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom}
_SENTENCES = {"detail", "status", "status_detail", "finding", "looks", "reason", "sentence"}
_LOOK_INTO = {"startswith", "endswith", "find", "index", "partition", "rpartition", "split", "removeprefix"}
_MATCH = {"match", "search", "fullmatch", "findall", "finditer", "sub", "split"}
_READING = {ast.Constant, ast.Compare, ast.Attribute, ast.Call}
_SQL = re.compile(r"\b(detail|status|status_detail|conditions)\s+(not\s+)?(i?like|similar|glob|~)", re.IGNORECASE)


def name_of(node: ast.expr) -> str:
    """The name of a variable or attribute, or of the column in `pl.col("...")`."""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "col" and node.args:
        return str(getattr(node.args[0], "value", ""))
    return str(getattr(node, "id", getattr(node, "attr", "")))


def reads_sentence(node: ast.AST) -> bool:
    """Whether code looks into a sentence: what one room reads of another is a typed column or a code."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and bool(_SQL.search(node.value))
    if isinstance(node, ast.Attribute):
        return node.attr == "str" and name_of(node.value) in _SENTENCES | {"conditions"}
    if isinstance(node, ast.Compare):
        searches = any(isinstance(operator, ast.In | ast.NotIn) for operator in node.ops)
        text = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        return searches and text and name_of(node.comparators[0]) in _SENTENCES
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in _MATCH and any(name_of(argument) in _SENTENCES for argument in node.args):
            return True
        return node.func.attr in _LOOK_INTO and name_of(node.func.value) in _SENTENCES
    return False


def _in_circles(files: dict[str, SourceFile]) -> set[str]:
    """The files outside the tests that import themselves through others, for the type checker only included."""
    modules = {
        name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): name
        for name, file in files.items()
        if file.room != "tests"
    }
    imports = {name: set(_imports(name, files[name], modules)) for name in modules.values()}
    return {name for name in imports if name in _reached(imports, name)}


def _reached(imports: dict[str, set[str]], name: str) -> set[str]:
    reached: set[str] = set()
    waiting = list(imports[name])
    while waiting:
        target = waiting.pop()
        if target not in reached:
            reached.add(target)
            waiting.extend(imports[target])
    return reached


def _imports(name: str, file: SourceFile, modules: dict[str, str]) -> Iterator[str]:
    package = name.split("/")[:-1]
    for node in file.imports:
        if isinstance(node, ast.Import):
            targets = [alias.name.removeprefix("whorl.") for alias in node.names]
        elif node.level or (node.module or "").startswith("whorl"):
            above = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*above, *filter(None, [(node.module or "").removeprefix("whorl").lstrip(".")])])
            inner = [f"{stem}.{alias.name}".lstrip(".") for alias in node.names]
            targets = [target if target in modules else stem for target in inner]
        else:
            continue
        for target in targets:
            if target in modules and modules[target] != name:
                yield modules[target]


def excess(measures: Measures, limits: Measures) -> list[str]:
    """What is above its limit, a line each. A room without limits may have none of it."""
    return [
        f"{room}: {measure_name} is {value:g}, and may be {limits.get(room, {}).get(measure_name, 0):g} at most"
        for room, values in measures.items()
        for measure_name, value in values.items()
        if value > limits.get(room, {}).get(measure_name, 0)
    ]


def lowered(measures: Measures, limits: Measures) -> Measures:
    """The lower of each measure and its limit, for the rooms that exist."""
    return {
        room: {name: min(value, limits.get(room, {}).get(name, value)) for name, value in values.items()}
        for room, values in measures.items()
    }


if __name__ == "__main__":
    current = measure(read_files())
    if "--lower" in sys.argv:
        known = json.loads(LIMITS.read_text()) if LIMITS.exists() else {}
        rows = [f"  {json.dumps(room)}: {json.dumps(values)}" for room, values in lowered(current, known).items()]
        LIMITS.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    else:
        sys.stdout.write("".join(f"{room:13}{json.dumps(values)}\n" for room, values in current.items()))
