"""`whorl replay` with whole schedulers and with policies of users: what is printed, compared, and refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from whorl.tests.cli import calling

DOCS = Path(__file__).resolve().parents[2] / "docs"
SHOCKWAVE = Path(__file__).resolve().parents[3] / "shared" / "data" / "schedulers" / "shockwave"
needs_schedulers = pytest.mark.skipif(not SHOCKWAVE.is_dir(), reason=f"the published schedulers are not in {SHOCKWAVE}")
SHAPE = ("--nodes", "1", "--gpus-per-node", "2", "--workers", "1")
HEAD = "job_id,num_gpus,submit_time,duration,model\n"


def whorl(*words: object) -> Result:
    return calling.whorl("replay", *words)


def document(*words: object, status: int = 0) -> dict[str, Any]:
    return calling.document("replay", *words, status=status)


def of_policy(rows: list[dict[str, Any]], policy: str) -> dict[str, Any]:
    (row,) = (row for row in rows if row["policy"] == policy)
    return row


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two GPUs; while a job of both runs, a long and a short one come."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "jobs.csv"
    path.write_text(HEAD + "wide,2,0,100,m\nlong,2,10,200,m\nshort,2,20,50,m\n")
    return path


def test_the_policy_of_the_docs_runs_as_it_stands_there(jobs: Path) -> None:
    code, placement = re.findall(r"^```python\n(.*?)^```", (DOCS / "replay.md").read_text(), re.M | re.S)
    assert len(code.splitlines()) <= 30
    Path("my_module.py").write_text(code + placement)
    answer = document("--trace", jobs, *SHAPE, "--policy", "my_module:MyPolicy", "--scheduler", "fifo,srtf")
    row = of_policy(answer["rows"], "my_module:MyPolicy")
    assert row["scheduler"] is None
    assert row["avg_jct_s"] == pytest.approx((100 + 340 + 130) / 3)  # short before long
    (finding,) = (entry for entry in answer["findings"] if entry["policy"] == "my_module:MyPolicy")
    over_packed = next(gain for gain in finding["gains"] if gain["against"] == "packed")
    packed_s = (100 + 290 + 330) / 3  # under the first scheduler, fifo
    assert over_packed["mean_pct"] == pytest.approx(100 * (1 - row["avg_jct_s"] / packed_s))
    assert finding["gains"][-1]["mean_pct"] == 0
    assert document("--trace", jobs, *SHAPE, "--policy", "my_module:MyPolicy", "--world", "knowledge=none", status=2)
    rows = document("--trace", jobs, *SHAPE, "--policy", "my_module:LastGpus", "--scheduler", "srtf")["rows"]
    assert of_policy(rows, "my_module:LastGpus")["avg_jct_s"] == of_policy(rows, "packed")["avg_jct_s"]


def decides(body: str) -> str:
    """A module whose policy answers this."""
    head = "from whorl.analysis.replay import Allocation, Decision, Policy\n\n\nclass Mine(Policy):\n"
    return f"{head}    def decide(self, view):\n        {body}\n"


@pytest.mark.parametrize(
    ("module", "fragments"),
    [
        (decides("return Decision({0: Allocation((0, 5))})"), ["wide", "5"]),
        (decides("return Decision({0: Allocation((0, 0))})"), ["wide", "0"]),
        (decides("return Decision({}, view.now_s - 1)"), ["-1"]),
        (decides("return Decision({}, float('nan'))"), ["nan"]),
        (decides("return Decision()"), ["wide"]),
        (decides("return {}[7]"), ["7", "0 s"]),
        (decides("return None"), ["None"]),
        *((module, [":Mine"]) for module in (None, "x = 1\n", "class Mine: pass\n", "1 / 0\n", "class Mine(:\n")),
    ],
)
def test_what_a_policy_does_wrong_is_one_sentence_and_other_rows_are_given(
    module: str | None, fragments: list[str], jobs: Path
) -> None:
    name = f"made_{abs(hash(module))}"
    if module is not None:
        Path(f"{name}.py").write_text(module)
    result = whorl("--trace", jobs, *SHAPE, "--policy", f"{name}:Mine,packed", "--json")
    assert result.exit_code == 2, result.output
    assert {row["policy"] for row in json.loads(result.stdout)["rows"]} == {"packed", "drain-outliers"}
    (sentence,) = (line for line in result.stderr.splitlines() if "Mine" in line)
    assert all(fragment in sentence for fragment in fragments)


def test_the_policies_are_listed_with_what_they_need_to_know() -> None:
    from whorl.analysis.replay import POLICIES

    listed = whorl("--policy", "help")
    assert listed.exit_code == 0, listed.output
    page = (DOCS / "replay.md").read_text()
    for policy in POLICIES:
        assert re.search(rf"^{policy.name} ", listed.stdout, re.M), policy.name
        assert f"`{policy.name}`" in page, policy.name


def test_the_docs_define_each_figure_as_the_answer_does(jobs: Path) -> None:
    answer = document("--trace", jobs, *SHAPE, "--policy", "packed")
    page = (DOCS / "how-we-know" / "replay.md").read_text()
    for name, figure in answer["figures"].items():
        assert f"| `{name}` | {figure['unit']} | {figure['definition']} |" in page
        assert all(name in row for row in answer["rows"])


@needs_schedulers
@pytest.mark.long
def test_the_commands_of_the_docs_for_whole_schedulers() -> None:
    """On the published trace of Shockwave; its jobs of one GPU with the pairs of Gavel."""
    trace, regimes = SHOCKWAVE / "jobs_32gpus.csv", SHOCKWAVE / "regimes_32gpus.json"
    fleet = ("--nodes", 32, "--gpus-per-node", 1, "--workers", 1)
    answer = document("--trace", trace, "--regimes", regimes, *fleet, "--policy", "shockwave,las,srtf,fifo")
    rows = {row["policy"]: row for row in answer["rows"]}
    assert {name: row["scheduler"] for name, row in rows.items()} == {
        **dict.fromkeys(("shockwave", "las", "srtf", "fifo")), "packed": "fifo", "drain-outliers": "fifo",
    }  # fmt: skip
    assert "rounds of 120 s" in answer["conditions"]["clock"]
    assert "20 s" in answer["conditions"]["cost of a start"]
    shockwave = rows["shockwave"]
    assert shockwave["makespan_s"] == pytest.approx(24_197, rel=0.04)
    assert shockwave["avg_jct_s"] == pytest.approx(9_958, rel=0.04)
    assert shockwave["unfair_pct"] <= 7.5
    assert shockwave["worst_ftf"] <= 2.1
    makespans_s = {name: rows[name]["makespan_s"] for name in ("las", "srtf", "fifo")}
    assert shockwave["makespan_s"] <= 0.8 * min(makespans_s.values())
    assert makespans_s == pytest.approx({"las": 31_341, "srtf": 31_335, "fifo": 31_461}, rel=2e-3), "of the same rules"
    assert (rows["srtf"]["unfair_pct"], rows["srtf"]["worst_ftf"]) == (0, pytest.approx(0.721, abs=1e-3))
