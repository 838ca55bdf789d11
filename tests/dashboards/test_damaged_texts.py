"""JSON texts of a store that are damaged, or made to do harm: no page and no command fails over them without a word."""

from __future__ import annotations

import re
import shutil
from itertools import product
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from whorl.analysis.energy.choices.models import sizes
from whorl.cli import cli
from whorl.dashboards.app.pages import PAGES
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.conftest import BuiltOnce
from whorl.tests.contract.inputs import build_mixed
from whorl.tests.dashboards.asking import Asked
from whorl.tests.sizes import sample
from whorl.tests.stores import new_store

DEEP = "[" * 200_000
TEXTS = ("{", "5", DEEP, "[5]", '["\\ud800"]', '[{"what": 5}]', "[[null]]")
LISTS = (
    *("verdicts.gpus", "verdicts.keys", "verdicts.causes", "verdicts.workloads", "verdicts.runs"),
    *("judgements.not_judged", "judgements.changes", "judgements.watch", "fingerprints.evidence"),
)
WIDE = '{"clock": [1], "parameters": 5, "locked_clock_mhz": {}, "values": 5, "works": "x", "power_limit_w": "\\ud800"}'
DAMAGED = [*product(LISTS, TEXTS), *product(("runs.conditions", "runs.versions"), (*TEXTS, WIDE))]
COMMANDS = ("verdicts --json", "explain GPU", "fingerprint --json", "report --out OUT", "report --gpu GPU --out OUT",
            "energy excess", "export prometheus --once")  # fmt: skip


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.mark.parametrize(("column", "text"), sample(DAMAGED, short=1))
def test_a_damaged_json_text_is_one_sentence_with_its_file(
    built_once: BuiltOnce, tmp_path: Path, column: str, text: str
) -> None:
    root = tmp_path / "fleet"
    shutil.copytree(built_once("contract-mixed", build_mixed) / "store", root)
    gpu = Store.open(root).sql("select name from verdicts_now where level = 'gpu'").to_pylist()[0]["name"]
    table, _, name = column.partition(".")
    for path in (root / table).rglob("*.parquet"):
        rows = pq.read_table(path)
        if name not in rows.column_names:
            continue
        place = rows.column_names.index(name)
        pq.write_table(rows.set_column(place, rows.field(place), pa.array([text] * len(rows), pa.string())), path)
    sentences = []
    for command in sample(COMMANDS, short=2):
        words = ({"GPU": gpu, "OUT": tmp_path / "r.html"}.get(word, word) for word in command.split())
        done = run(*words, "--store", root)
        assert isinstance(done.exception, SystemExit | None), (command, done.exception)
        if done.exit_code not in (0, 1):
            sentences.append(done.stderr)
    asked = Asked(Store.open(root))
    addresses = (*(page.path for page in PAGES), f"gpu?gpu={quote(gpu)}", "?findings=all")
    for address in sample(addresses, short=3):
        sentences += re.findall(f'{re.escape(str(root))}[^"]*: column [^"]*', asked.said(address))
    assert sentences
    assert all(str(root / table) in one and f"column {name} " in one for one in sentences), sentences


def test_conditions_that_are_damaged_state_nothing_to_a_query(tmp_path: Path) -> None:
    store = new_store(tmp_path / "S")
    for number, text in enumerate(("{", DEEP, WIDE, '{"flop": 7}')):
        row = {"run_id": str(number), "cluster": "c", "gpu": str(number), "workload": "w", "conditions": text}
        times = {"began": 0, "ended": 9}
        store.append(
            {"runs": arrow_rows("runs", {key: [value] for key, value in {**row, **times}.items()})}, str(number)
        )
    assert dict(sizes(store).select("gpu", "work").iter_rows()) == {"0": None, "1": None, "2": None, "3": 7.0}
