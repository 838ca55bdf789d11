"""The example notebook, cell by cell, and the Python functions that a notebook calls."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import click
import polars as pl
import pyarrow as pa
import pytest

import whorl
from whorl.analysis.placement import AdviceOptions
from whorl.cli import cli
from whorl.collectors.collect import CollectOptions
from whorl.errors import InputError
from whorl.probes.measurement import MeasureOptions
from whorl.store import Store

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"


def _shown(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; what its last line shows, as a notebook does."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        tree.body.pop()
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None


@pytest.mark.long
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document = json.loads(NOTEBOOK.read_text())
    cells = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    assert len(document["cells"]) == 20
    names: dict[str, Any] = {}
    answers = [_shown("".join(cell["source"]), names) for cell in cells]
    assert [len(repr(answer)) < 5000 for answer in answers if type(answer).__name__ != "Figure"], "no wall of text"
    assert "<table" in answers[-2]._repr_html_()
    name = names["slowest"]["name"][0].as_py()
    assert names["found"].frame["name"].to_list() == [name]
    assert names["advice"].exclude == [name.partition("/")[0]]
    assert answers[-3]["energy_j"].min() > 0
    assert [type(answer).__name__ for answer in answers].count("Figure") == 2
    assert (tmp_path / "notebook-report.html").read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notebook-fleet", "notebook-report.html"]


NAMES = {"chosen": "gpu", "distribution": "input", "kinds": "fault", "names": None, "store": None, "as_json": None}
ELSEWHERE = {
    "form",
    "output",
    "and",
    "own",
    "node",
    "file_node",
    "workload",
    "job",
}  # of another kind, or about printing


def _options(*words: str) -> dict[str, click.Option]:
    command: Any = cli
    for word in words:
        command = command.commands[word]
    options = {
        NAMES.get(option.name, option.name): option for option in command.params if isinstance(option, click.Option)
    }
    return {name: option for name, option in options.items() if name is not None and name not in ELSEWHERE}


@pytest.mark.parametrize(
    ("words", "function", "options"),
    [
        (("probe", "run"), whorl.measure, MeasureOptions),
        (("collect",), whorl.collect, CollectOptions),
        (("advise",), whorl.advise, AdviceOptions),
        (("report",), whorl.report, None),
    ],
)
def test_a_function_takes_what_its_verb_takes_with_the_same_defaults(
    words: tuple[str, ...], function: Any, options: Any
) -> None:
    """Its own arguments, or those of the dataclass that its documentation names."""
    parameters = dict(inspect.signature(function).parameters)
    if options is not None:
        assert f"`{options.__name__}`" in function.__doc__
        parameters = dict(inspect.signature(options).parameters) | parameters
    for name, option in _options(*words).items():
        pairs = [key.replace("-", "_") for keys in getattr(option, "tables", {}).values() for key in keys]
        missing = {name, *pairs} - {"set"} - parameters.keys() - ELSEWHERE
        assert not missing, f"{function.__name__} has no {missing}"
        if name == "set":
            continue
        default: Any = () if option.multiple else False if option.is_flag else None
        default = getattr(option, "usual", default)  # of --backend
        if isinstance(option.default, str | int | float):
            default = option.type.convert(option.default, None, None)
            default = default / 86_400 if name == "max_age" else default
        assert parameters[name].default == default, f"{function.__name__}({name}=...)"


def test_an_answer_is_read_by_what_reads_arrow(store: Store) -> None:
    answer = store.sql("select 1 as a, 'x' as b union all select 2, 'y' order by a")
    assert pa.table(answer).equals(answer.table)
    assert pl.DataFrame(answer).rows() == [(1, "x"), (2, "y")]
    assert (len(answer), answer.num_rows, answer.column_names, answer["a"].to_pylist()) == (2, 2, ["a", "b"], [1, 2])
    assert answer == store.sql("select 1 as a, 'x' as b union all select 2, 'y' order by a")
    assert "shape: (2, 2)" in repr(answer)
    assert "interval" in repr(store.sql("select interval 1 day as d")).lower()


def test_what_cannot_be_asked_is_one_sentence(tmp_path: Path) -> None:
    for arguments in (
        {"suite": "thorough"},
        {"backend": "cpu"},
        {"suite": "quick", "repeats": 1},
        {"suite": "quick", "gpus": 4},
    ):
        with pytest.raises(InputError):
            whorl.measure(tmp_path / "S", **arguments)
    with pytest.raises(InputError, match='gpus works only with backend="simulated"'):
        whorl.collect(tmp_path / "S", gpus=2)
    assert not (tmp_path / "S").exists()
