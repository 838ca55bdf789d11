"""The house: what is packaged, what is documented, what is imported."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.store.events import TYPED, EventKind
from whorl.store.schema import TABLES
from whorl.store.views import VIEWS
from whorl.tests import house

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (
    "analysis",
    "benchmarks",
    "cli",
    "collectors",
    "dashboards",
    "jobs",
    "kernels",
    "probes",
    "simulation",
    "store",
)
OUTSIDE_THE_PACKAGE = {"tests", "benchmarks", "docs", "demo", "build"}


def _verbs() -> dict[str, click.Command]:
    return dict(cli.commands)


def _with_subcommands(name: str, command: click.Command) -> dict[str, click.Command]:
    found = {name: command}
    if isinstance(command, click.Group):
        for sub, subcommand in command.commands.items():
            found |= _with_subcommands(f"{name} {sub}", subcommand)
    return found


def test_every_folder_with_code_is_packaged() -> None:
    packages = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    folders = {
        path.parent.relative_to(ROOT)
        for path in ROOT.rglob("*.py")
        if not any(part.startswith(".") or part in OUTSIDE_THE_PACKAGE for part in path.relative_to(ROOT).parts)
    }
    expected = {".".join(["whorl", *folder.parts]) for folder in folders}
    assert packages == expected


_NAMED = re.compile(r"(?<![\w/.])((?:" + "|".join(("tests", *ROOMS)) + r")/[a-z0-9_/]+\.py)\b")


def test_every_module_that_a_comment_or_a_page_names_exists() -> None:
    """A module that moved takes with it what names it."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    code = [path for room in ("tests", *ROOMS) for path in (ROOT / room).rglob("*.py")]
    named = {(name, path) for path in (*pages, *code) for name in _NAMED.findall(path.read_text())}
    assert len(named) > 20
    assert {(name, path) for name, path in named if not (ROOT / name).exists()} == set()


def test_every_folder_says_what_it_is_in_the_table_for_who_contributes() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    told = re.findall(r"^\| `([a-z_/]+)/` \| \S", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert sorted(told) == sorted(name.partition(".")[2].replace(".", "/") for name in packages[1:])


def test_names_arguments_homonyms_and_circles_only_become_fewer() -> None:
    above = house.excess(house.measure(), json.loads(house.LIMITS.read_text()))
    assert not above, "; ".join(above)


def test_the_measures_of_the_house_notice_what_they_are_for(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "store" / "a.py").write_text(
        "from . import b\nclass Kind: ...\ndef f(one, p2, p3, p4, p5, p6, p7): ...\n"
    )
    (tmp_path / "store" / "b.py").write_text("if TYPE_CHECKING:\n    from .a import Kind\nfound = 1\n")
    (tmp_path / "jobs" / "c.py").write_text("from ..store import a\nclass Kind: ...\nrun_ids = []\n")
    for command in (["init", "--quiet"], ["add", "."]):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    measures = house.measure(tmp_path)
    assert measures["store"] == {"vague_pct": 25.0, "many_parameters": 1, "homonyms": 1, "circles": 2}
    assert measures["jobs"] == {"vague_pct": 0.0, "many_parameters": 0, "homonyms": 1, "circles": 0}
    assert house.excess(measures, {"store": {**measures["store"], "vague_pct": 24.9}, "jobs": measures["jobs"]}) == [
        "store: vague_pct is 25, and may be 24.9 at most"
    ]


def test_no_other_module_lies_in_the_root() -> None:
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py", "errors.py"}


@pytest.mark.parametrize("verb", sorted(_verbs()))
def test_every_verb_and_option_is_documented(verb: str) -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    assert f"## whorl {verb}\n" in page, f"docs/cli.md has no section for {verb}"
    section = page.split(f"## whorl {verb}\n")[1].split("\n## ")[0]
    for name, command in _with_subcommands(verb, _verbs()[verb]).items():
        spelled = (f"`{name.split()[-1]}`", f"`whorl {name}`", f"`whorl {name} ")
        assert name == verb or any(form in section for form in spelled), f"{name} is missing"
        assert command.help, name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert any(f"`{o}" in section for o in parameter.opts), f"{name}: {parameter.opts} is not explained"
    assert f"`whorl {verb}`" in (ROOT / "README.md").read_text(), f"README.md does not name {verb}"


def test_no_section_documents_a_verb_that_is_gone() -> None:
    lines = (ROOT / "docs" / "cli.md").read_text().splitlines()
    documented = {line.removeprefix("## whorl ") for line in lines if line.startswith("## whorl ")}
    assert documented == set(_verbs())


def test_the_page_of_tables_is_made_from_the_schema() -> None:
    made = CliRunner().invoke(cli, ["schema", "--markdown"]).output
    assert (ROOT / "docs" / "tables.md").read_text() == made, "run: whorl schema --markdown > docs/tables.md"
    for name in [table.name for table in TABLES] + [view.name for view in VIEWS]:
        assert name in made


def test_every_column_says_what_it_means() -> None:
    for table in TABLES:
        assert table.row
        assert len({column.name for column in table.columns}) == len(table.columns)
        for column in table.columns:
            assert column.description, f"{table.name}.{column.name}"
            numeric = column.type in ("INTEGER", "BIGINT", "DOUBLE")
            suffixed = column.name.rpartition("_")[2] in ("mw", "w", "mj", "mhz", "c", "ms")
            assert column.unit or not (numeric and suffixed), f"{table.name}.{column.name} has no unit"


def test_every_page_of_docs_is_linked_from_its_first_page() -> None:
    first = ROOT / "docs" / "README.md"
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert page == first or f"({name})" in first.read_text(), f"link {name} from docs/README.md"


_SENTENCES = {"detail", "status", "status_detail", "finding", "looks", "reason", "sentence"}
_LOOK_INTO = {"startswith", "endswith", "find", "index", "partition", "rpartition", "split", "removeprefix"}
_MATCH = {"match", "search", "fullmatch", "findall", "finditer", "sub", "split"}
_CONDITIONS = ROOT / "store" / "conditions.py"  # the reader of a JSON object, which is no sentence
_SQL = re.compile(r"\b(detail|status|status_detail|conditions)\s+(not\s+)?(i?like|similar|glob|~)", re.IGNORECASE)


def _named(node: ast.expr) -> str:
    """The name of a variable or attribute, or of the column in `pl.col("...")`."""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "col" and node.args:
        return str(getattr(node.args[0], "value", ""))
    return str(getattr(node, "id", getattr(node, "attr", "")))


def _reads_prose(node: ast.AST) -> bool:
    """Whether code looks into a sentence: what one room reads of another is a typed column or a code."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return bool(_SQL.search(node.value))
    if isinstance(node, ast.Compare):
        looks = any(isinstance(one, ast.In | ast.NotIn) for one in node.ops)
        text = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        return looks and text and _named(node.comparators[0]) in _SENTENCES
    if isinstance(node, ast.Attribute) and node.attr == "str":
        return _named(node.value) in _SENTENCES | {"conditions"}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        of = node.func.value
        if node.func.attr in _MATCH and any(_named(argument) in _SENTENCES for argument in node.args):
            return True
        return node.func.attr in _LOOK_INTO and _named(of) in _SENTENCES
    return False


@pytest.mark.parametrize(
    "code",
    [
        'pl.col("detail").str.extract("version")', 'x = "lost" in status', "reason.startswith('no')",
        "re.search('x', event.detail)", "_GONE.search(status)", 'sql("select 1 from runs where status like 1")',
    ],
)  # fmt: skip
def test_a_look_into_a_sentence_is_noticed(code: str) -> None:
    assert any(_reads_prose(node) for node in ast.walk(ast.parse(code)))


def test_no_room_reads_the_sentences_of_another() -> None:
    rooms = ("store", "simulation", "kernels", "collectors", "probes", "analysis", "dashboards", "jobs", "cli")
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"  # type: ignore[attr-defined]
        for room in rooms
        for path in sorted((ROOT / room).rglob("*.py"))
        if path != _CONDITIONS
        for node in ast.walk(ast.parse(path.read_text()))
        if _reads_prose(node)
    ]
    assert not found, (
        "a program reads a sentence: give it a typed column or a code (store/events.py, store/outcomes.py)"
    )


def test_every_kind_of_event_is_told_somewhere_and_no_other() -> None:
    """And with no typed column but those that `EventKind` names for it."""
    told: dict[str, set[str]] = {}
    for room in ("simulation", "collectors", "probes", "store", "jobs"):
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if "Event" in text else ():
                if isinstance(node, ast.Attribute) and _named(node.value) == "EventKind" and node.attr.isupper():
                    told.setdefault(EventKind[node.attr], set())
                if isinstance(node, ast.Call) and _named(node.func) == "Event" and node.args:
                    kind = node.args[0]
                    if isinstance(kind, ast.Attribute) and _named(kind.value) == "EventKind":
                        filled = {str(word.arg) for word in node.keywords} & set(TYPED)
                        told.setdefault(EventKind[kind.attr], set()).update(filled)
    assert told.keys() == set(EventKind)
    for name, columns in told.items():
        assert columns <= set(EventKind(name).fills), name


def test_no_analysis_knows_what_was_planted() -> None:
    """The truth of a simulated fleet is for judging what analysis finds: one that reads it proves nothing."""
    for room in ("analysis", "dashboards", "jobs", "probes"):
        for path in (ROOT / room).rglob("*.py"):
            assert not re.search(r"\btruth\b|\bTRUTH\b", path.read_text()), path


def _loaded(*lines: Sequence[str]) -> dict[str, set[str]]:
    """The packages that are loaded once each line was given, one after another in one process."""
    code = f"import sys\nfrom whorl.cli import cli\nfor line in {lines!r}:\n    try:\n        "
    code += "cli(line, standalone_mode=False)\n    except SystemExit:\n        pass\n"
    code += "    print(*line, *sys.modules, sep='|', file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = [words.split("|") for words in done.stderr.splitlines()]
    return {
        " ".join(line): {name.partition(".")[0] for name in words[len(line) :]}
        for line, words in zip(lines, found, strict=True)
    }


def test_help_is_light() -> None:
    heavy = {"polars", "duckdb", "pyarrow", "numpy", "dash", "scipy", "cupy"}
    helps = [
        ["--help"],
        ["import", "--help"],
        ["variability", "--help"],
        ["advise", "apply", "--help"],
        ["schema"],
        ["collect", "--help"],
        ["sim", "run", "--help"],
        ["demo", "--help"],
        ["probe", "run", "--help"],
        ["campaign", "run", "--help"],
        ["store", "prune", "--help"],
    ]
    assert {line: heavy & loaded for line, loaded in _loaded(*helps).items() if heavy & loaded} == {}


def test_the_list_of_probes_needs_numpy_at_most() -> None:
    assert not {"pyarrow", "polars", "duckdb", "cupy"} & _loaded(["probe", "list"])["probe list"]


def test_importing_whorl_is_light() -> None:
    code = "import sys, whorl; print(whorl.__version__, *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"polars", "duckdb", "pyarrow", "numpy"} & set(done.stdout.split())


def test_the_version_is_the_packages() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert CliRunner().invoke(cli, ["--version"]).output == f"whorl, version {version}\n"
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_lock_names_no_host() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "--hash=sha256:" in text
    assert "://" not in text
