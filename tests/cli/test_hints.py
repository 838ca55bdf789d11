"""A command that whorl prints to be copied runs as it is printed, also where a store holds two fleets of one name."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.probes import catalogue
from whorl.store import Store
from whorl.tests.hints import run_hints
from whorl.tests.sizes import sample

pytestmark = pytest.mark.usefixtures("few_replicates", "stores_stay_open")


def printed(*words: str, status: int = 0) -> str:
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == status, done.output
    return done.output


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with two fleets of the same names in its store, and what the second demo printed."""
    out = tmp_path_factory.mktemp("two fleets") / "D"
    suite = catalogue.suite
    with pytest.MonkeyPatch.context() as patch:
        few = ("gemm-fp32", "stream-triad")
        patch.setattr(catalogue, "suite", lambda name: tuple(entry for entry in suite(name) if entry.name in few))
        printed("demo", "sim", "--gpus", "8", "--set", "runs=1", "--seed", "5", "--store", str(out / "store"))
        text = printed("demo", "--gpus", "8", "--fault", "pinned", "--force", "--out", str(out))
    return out, text


VERBS = (
    "verdicts plan --budget 1h --cluster {cluster}", "verdicts", "explain {gpu} --cluster {cluster}",
    "verdicts fingerprint --cluster {cluster}", "verdicts variability",
    "verdicts diff --before 2026-01-06 --after 2026-01-06 --cluster {cluster}",
    "report --out {folder}/r.html", "energy", "energy --by job", "energy excess", "store status",
    "advise --workload gemm-fp32 --cluster {cluster} --no-scheduler",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("verb", ["demo", *sample(VERBS, short=3)])
def test_what_a_verb_prints_to_be_copied_runs(
    verb: str, fleets: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    out, demo = fleets
    if verb == "demo":
        commands = run_hints(demo)
        assert {"dashboard", "explain", "advise", "energy"} <= {words[0] for words in commands}
        return
    store = str(out / "store")
    [row] = Store.open(store).sql("select distinct name, cluster from verdicts_now limit 1").to_pylist()
    words = verb.format(gpu=row["name"], cluster=row["cluster"], folder=tmp_path).split()
    commands = run_hints(printed(*words, "--store", store))
    assert "plan" not in words or ["probe", "run"] in [command[:2] for command in commands]
