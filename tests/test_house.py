"""The house: what is packaged, what is documented, what is imported."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.store.events import TYPED
from whorl.store.schema import TABLES
from whorl.store.views import VIEWS
from whorl.store.vocabulary import EventKind
from whorl.tests import house
from whorl.tests.sizes import is_long

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


NOT_PRINTED = {"whorl.chain/1", "whorl.campaign.doctor.node/1", "whorl.tune.log/1", "whorl.watch/1"}
"""Files that whorl writes for itself."""


def _verbs() -> dict[str, click.Command]:
    return dict(cli.commands)


def _with_subcommands(name: str, command: click.Command) -> dict[str, click.Command]:
    command_by_name = {name: command}
    if isinstance(command, click.Group):
        for sub, subcommand in command.commands.items():
            command_by_name |= _with_subcommands(f"{name} {sub}", subcommand)
    return command_by_name


@pytest.fixture(scope="module")
def files() -> dict[str, house.SourceFile]:
    """What stands in each file; those of the tests take half of the time."""
    return house.read_files(tests=is_long())


def test_every_library_that_the_code_imports_is_declared(files: dict[str, house.SourceFile]) -> None:
    """Those of development, benchmarks and tests do not count: `pip install .` brings none of them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *chain.from_iterable(project["optional-dependencies"].values())]
    names = {re.split(r"[^\w-]", requirement)[0].replace("-", "_").lower() for requirement in declared}
    imported = set()
    for node in (node for file in files.values() if file.room not in OUTSIDE_THE_PACKAGE for node in file.imports):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif not node.level and node.module:
            imported.add(node.module.split(".")[0])
    distributions = importlib.metadata.packages_distributions()
    brought = {module: distributions[module] for module in imported & distributions.keys() if module != "whorl"}
    assert len(brought) > 8
    missing = {module for module, by in brought.items() if not names & {name.replace("-", "_").lower() for name in by}}
    # of dash, of OpenTelemetry's exporter, and of pyiceberg's sql-sqlite
    assert missing == {"flask", "requests"}


def test_every_folder_with_code_is_packaged() -> None:
    packages = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    rooms = [path for path in ROOT.iterdir() if path.name[0] != "." and path.name not in OUTSIDE_THE_PACKAGE]
    folders = {
        path.parent.relative_to(ROOT) for room in rooms for path in (room, *room.rglob("*")) if path.suffix == ".py"
    }
    expected = {".".join(["whorl", *folder.parts]) for folder in folders}
    assert packages == expected


_NAMED = re.compile(r"(?<![\w/.])((?:" + "|".join(("tests", *ROOMS)) + r")/[a-z0-9_/]+\.py)\b")


def test_every_module_that_a_comment_or_a_page_names_exists() -> None:
    """A module that moved takes with it what names it."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    code = [path for room in ("tests", *ROOMS) for path in (ROOT / room).rglob("*.py")]
    page_names = {(name, path) for path in (*pages, *code) for name in _NAMED.findall(path.read_text())}
    assert len(page_names) > 20
    assert {(name, path) for name, path in page_names if not (ROOT / name).exists()} == set()


def test_every_folder_says_what_it_is_in_the_table_for_who_contributes() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    rooms = re.findall(r"^\| `([a-z_/]+)/` \| \S", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert sorted(rooms) == sorted(name.partition(".")[2].replace(".", "/") for name in packages[1:])


def test_names_arguments_homonyms_and_circles_only_become_fewer(files: dict[str, house.SourceFile]) -> None:
    above = house.excess(house.measure(files), json.loads(house.LIMITS.read_text()))
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
    measures = house.measure(house.read_files(tmp_path))
    assert measures["store"] == {"vague_pct": 25.0, "many_parameters": 1, "homonyms": 1, "circles": 2}
    assert measures["jobs"] == {"vague_pct": 0.0, "many_parameters": 0, "homonyms": 1, "circles": 0}
    assert house.excess(measures, {"store": {**measures["store"], "vague_pct": 24.9}, "jobs": measures["jobs"]}) == [
        "store: vague_pct is 25, and may be 24.9 at most"
    ]


def test_no_other_module_lies_in_the_root() -> None:
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py", "errors.py"}


def test_the_page_of_commands_is_made_from_their_help() -> None:
    output = CliRunner().invoke(cli, ["man", "--markdown"], prog_name="whorl").output
    assert (ROOT / "docs" / "cli.md").read_text() == output, "run: whorl man --markdown > docs/cli.md"
    for verb, top in _verbs().items():
        for name, command in _with_subcommands(verb, top).items():
            assert re.search(rf"^#+ whorl {name}( [^a-z]|$)", output, re.M), name
            assert command.help, name


def test_the_page_of_json_has_every_document() -> None:
    page = (ROOT / "docs" / "json.md").read_text()
    rooms = ("analysis", "cli", "collectors", "dashboards", "jobs", "probes", "store")
    code = "".join(path.read_text() for room in rooms for path in (ROOT / room).rglob("*.py"))
    printed = set(re.findall(r'"schema": "(whorl\.[a-z_.-]+/\d)"', code)) - NOT_PRINTED
    assert sorted(name for name in printed if f"`{name}`" not in page) == []


def test_the_page_of_tables_is_made_from_the_schema() -> None:
    output = CliRunner().invoke(cli, ["schema", "--markdown"]).output
    assert (ROOT / "docs" / "tables.md").read_text() == output, "run: whorl schema --markdown > docs/tables.md"
    for name in [table.name for table in TABLES] + [view.name for view in VIEWS]:
        assert name in output


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


def test_a_look_into_a_sentence_is_noticed() -> None:
    for code in (
        'pl.col("detail").str.extract("version")', 'x = "lost" in status', "reason.startswith('no')",
        "re.search('x', event.detail)", "_GONE.search(status)", 'sql("select 1 from runs where status like 1")',
    ):  # fmt: skip
        assert any(house.reads_sentence(node) for node in ast.walk(ast.parse(code))), code


def test_no_room_reads_the_sentences_of_another(files: dict[str, house.SourceFile]) -> None:
    """It reads a typed column or a code (store/vocabulary.py). A JSON object is no sentence."""
    apart = {"tests", "benchmarks", "docs", "root"}
    read = {name: file.sentences for name, file in files.items() if file.sentences and file.room not in apart}
    assert read.keys() <= {"store/vocabulary.py"}, read


def test_every_kind_of_event_is_told_somewhere_and_no_other() -> None:
    """And with no typed column but those that `EventKind` names for it."""
    by_word: dict[str, set[str]] = {}
    for room in ("simulation", "collectors", "probes", "store", "jobs"):
        for path in (ROOT / room).rglob("*.py"):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if "EventKind." in text else ():
                if isinstance(node, ast.Attribute) and house.name_of(node.value) == "EventKind" and node.attr.isupper():
                    by_word.setdefault(EventKind[node.attr], set())
                if isinstance(node, ast.Call) and house.name_of(node.func) == "Event" and node.args:
                    kind = node.args[0]
                    if isinstance(kind, ast.Attribute) and house.name_of(kind.value) == "EventKind":
                        filled = {str(word.arg) for word in node.keywords} & set(TYPED)
                        by_word.setdefault(EventKind[kind.attr], set()).update(filled)
    assert by_word.keys() | {EventKind.ABSENT} == set(EventKind)  # nothing that whorl reads tells of it so far
    for name, columns in by_word.items():
        assert columns <= set(EventKind(name).fills), name


def test_no_analysis_knows_what_was_planted() -> None:
    """The truth of a simulated fleet is for judging what analysis finds: one that reads it proves nothing."""
    for room in ("analysis", "dashboards", "jobs", "probes"):
        for path in (ROOT / room).rglob("*.py"):
            assert not re.search(r"\btruth\b|\bTRUTH\b", path.read_text()), path


def _loaded(*lines: Sequence[str]) -> dict[str, set[str]]:
    """The packages that are loaded after `import whorl`, then after each line, one after another in one process."""
    code = "import sys, whorl\nprint('import', *sys.modules, sep='|', file=sys.stderr)\n"
    code += f"from whorl.cli import cli\nfor line in {lines!r}:\n    try:\n        "
    code += "cli(line, standalone_mode=False)\n    except SystemExit:\n        pass\n"
    code += "    print(' '.join(line), *sys.modules, sep='|', file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    printed = [line.split("|") for line in done.stderr.splitlines()]
    return {line: {name.partition(".")[0] for name in modules} for line, *modules in printed}


def test_help_is_light_and_the_list_of_probes_needs_numpy_at_most() -> None:
    heavy = {"polars", "duckdb", "pyarrow", "numpy", "dash", "scipy", "cupy"}
    helps = (
        "--help", "import --help", "verdicts variability --help", "advise apply --help", "schema", "collect --help",
        "demo sim --help", "demo --help", "probe run --help", "campaign run --help", "store prune --help",
    )  # fmt: skip
    loaded = _loaded(*map(str.split, helps), ["probe", "list"])
    assert loaded.keys() == {"import", *helps, "probe list"}
    assert {line: heavy & packages for line, packages in loaded.items() if heavy & packages} in (
        {}, {"probe list": {"numpy"}},
    )  # fmt: skip


def test_the_version_is_the_packages() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert CliRunner().invoke(cli, ["--version"]).output == f"whorl, version {version}\n"
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_lock_names_no_host() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "--hash=sha256:" in text
    assert "://" not in text
