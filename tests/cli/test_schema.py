"""`whorl schema`: every table and column is explained, in every form."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli, output
from whorl.cli.schema import _type
from whorl.store.schema import TABLES
from whorl.store.views import VIEWS
from whorl.tests.sizes import sample


def whorl(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["schema", *arguments])


def test_text_names_every_column_with_unit_and_meaning() -> None:
    lines = whorl().stdout.splitlines()
    for spec in TABLES:
        assert f"{spec.name}: one row is {spec.row}" in lines
        for column in spec.columns:
            begins = [column.name, *_type(column).split()][:2]
            assert any(line.split()[:2] == begins and line.endswith(column.description) for line in lines), column.name


@pytest.mark.long(short=1)
@pytest.mark.parametrize("columns", [80, 120, None])
def test_it_fits_a_terminal_and_a_pipe_has_whole_lines(columns: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of codes break their sentences as well; the SQL of a view is shown to those who ask for the view."""
    monkeypatch.setattr(output, "width", lambda: columns)
    lines = whorl().stdout.splitlines()
    assert not [line for line in lines if columns is not None and len(line) > columns]
    assert not [line for line in lines if line.startswith("row 1")], "no table is printed row by row"
    for view in sample(VIEWS, short=3):
        assert any(line.startswith(f"{view.name} (view): one row is ") for line in lines)
        assert view.sql not in lines
        view_text = whorl(view.name).stdout
        assert " ".join(view.sql.split()) in " ".join(view_text.split())


def test_every_column_of_a_view_is_explained() -> None:
    document = json.loads(whorl("--json", "runs", *(view.name for view in VIEWS)).stdout)
    for view in document["views"]:
        assert all(column["description"] for column in view["columns"]), view["name"]
    page = whorl("--markdown").stdout
    assert "- `total_j` (DOUBLE, J): energy of all of them" in page
    assert "It has all columns of `telemetry`." in page.partition("## telemetry_of_job (view)")[2]
    assert "SELECT" not in page


def test_an_unknown_table_is_a_sentence() -> None:
    result = whorl("nothing")
    assert result.exit_code == 2
    assert "there is no table 'nothing'; there are gpus, telemetry, campaigns, runs" in result.stderr
