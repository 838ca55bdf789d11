"""Every verb on every input gives what its golden file has: status, keys, codes, ids, counts, numbers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from whorl.cli import cli
from whorl.tests.burst_files import write_files
from whorl.tests.chain_log import chain_log
from whorl.tests.contract import forms
from whorl.tests.contract.harness import Golden, InputFolder, Output, Reduction, run
from whorl.tests.contract.inputs import INPUTS, LONGHORN, trace
from whorl.tests.measured_sweep import sweep

pytestmark = pytest.mark.usefixtures("bare_machine", "stores_are_copied", "stores_stay_open")


@dataclass(frozen=True)
class Question:
    """A command and what is compared of its answer.

    In `words`, `{store}`, `{folder}`, `{cluster}`, `{gpu}` and `{workload}` are those of the input, `{out}` is an empty
    folder. `inputs`: only these; `short`: of these the ones in the short form. One that `writes` gets a copy of the
    input; one of `slurm` has the Slurm beside it.
    """

    name: str
    words: str
    form: Callable[[Output], Any] = forms.document
    inputs: tuple[str, ...] = tuple(INPUTS)
    short: tuple[str, ...] = ("fleet", "none")
    writes: bool = False
    files: Callable[[Path], Any] | None = None
    slurm: bool = False


def _on_store(name: str, words: str, form: Callable[[Output], Any] = forms.document, **options: Any) -> Question:
    verb, _, remainder = words.partition(" /")
    return Question(name, f"{verb} --store {{store}}{remainder}", form, **options)


def _sample(out: Path) -> Any:
    return forms.csv_files(out / "sample")


def _page(out: Path) -> Any:
    path = out / "page.html"
    return forms.page(path) if path.exists() else None


BOOKED = ("fleet", "mixed", "none")
JUDGED = ("longhorn", "fleet", "mixed", "one")
SELECT = "select name, uuid, node, slot, model, power_limit_mw, first_seen from gpus_now order by gpu"
REPLAY = "replay --trace {folder}/jobs.csv --store {store} --class *={workload} --workers 1 --json"
CHECK = "check / --backend simulated:gpus=2"
ADVISE = "advise / --workload {workload}"

QUESTIONS = [
    _on_store("verdicts", "verdicts / --json", short=("fleet", "none")),
    _on_store("verdicts-since", "verdicts / --json --since 2026-01-06", inputs=("fleet",), short=(), writes=True),
    _on_store("verdicts-campaign", "verdicts / --json --campaign second", inputs=("fleet",), short=(), writes=True),
    _on_store("verdicts-text", "verdicts /", forms.status_only, inputs=("mixed", "none")),
    _on_store("explain", "explain {gpu} / --json", short=("mixed", "none")),
    _on_store("explain-unknown", "explain nobody / --json", short=("fleet", "none")),
    _on_store("verdicts-fingerprint", "verdicts fingerprint / --json", short=("one", "none")),
    _on_store("verdicts-fingerprint-gpu", "verdicts fingerprint / --gpu {gpu} --json", short=("mixed", "none")),
    _on_store("verdicts-variability", "verdicts variability / --json --set replicates=100", short=("mixed", "none")),
    _on_store(
        "verdicts-variability-across", "verdicts variability / --across --json --set replicates=100", short=("fleet",)
    ),
    _on_store("report", "report / --out {out}/page.html", forms.status_only, files=_page, short=("none",)),
    _on_store("report-gpu", "report / --gpu {gpu} --out {out}/page.html", forms.status_only, files=_page, short=()),
    _on_store("verdicts-plan", "verdicts plan / --json", forms.planned, short=("mixed", "one")),
    _on_store("verdicts-diff", "verdicts diff / --before 2026-01-05T12:00 --after 2026-01-06 --json"),
    _on_store("advise", f"{ADVISE} --json", short=("fleet", "mixed", "none")),
    *(
        _on_store(f"advise-{form}", f"{ADVISE} --format {form}", forms.lines, short=short)
        for short, names in ((("mixed",), "exclude kubernetes"), ((), "weights taints prefer nodelist"))
        for form in names.split()
    ),
    _on_store("advise-nfd", f"{ADVISE} --format nfd --set node=c002-6", forms.lines, inputs=("fleet",)),
    _on_store("advise-job", f"{ADVISE} --gpus 16 --set max-share=20% --json", inputs=JUDGED, short=("mixed",)),
    _on_store("advise-apply", "advise apply 1234 / --workload {workload} --json", inputs=("fleet",)),
    _on_store("advise-spb", "advise spb / --workload {workload} --gpus 4 --set layers=12 --json", short=("mixed",)),
    _on_store(
        "advise-power-plan", "advise power-plan / --hosts c001-2 --workload {workload} --json", inputs=("fleet",)
    ),
    *(
        _on_store(f"energy-{by}", f"energy / --by {by} --json", inputs=BOOKED, short=tuple(short))
        for by, *short in (("job", "mixed"), ("user", "none"), ("account",), ("gpu", "fleet"), ("node",), ("day",))
    ),
    _on_store("energy-csv", "energy / --by user --csv", forms.rows, inputs=BOOKED, short=("mixed",)),
    _on_store("energy-of-job", "energy / --job 1101 --json", inputs=("fleet", "none"), short=("none",)),
    _on_store(
        "energy-window",
        "energy / --by user --since 2026-01-06 --until 2026-01-07 --json",
        inputs=BOOKED,
        short=("fleet",),
    ),
    _on_store(
        "jobs-idle", "jobs idle / --set at-least=1s --set price=2 --json", inputs=BOOKED, short=("mixed", "none")
    ),
    _on_store("energy-unread", "energy / --json", inputs=("longhorn", "one")),
    _on_store("energy-reconcile", "energy reconcile / --json"),
    _on_store("energy-calibrate", "energy calibrate / --dry-run --json", short=("none",)),
    *(
        _on_store(f"energy-excess-{by}", f"energy excess / --by {by} --json", inputs=BOOKED, short=(*also, "none"))
        for by, *also in (("gpu", "mixed"), ("node",), ("job",))
    ),
    _on_store("energy-excess-csv", "energy excess / --csv", forms.rows, inputs=("fleet",), short=()),
    _on_store("energy-quote", "energy quote / --job 1101 --json", inputs=("fleet", "none"), short=("none",)),
    _on_store(
        "energy-quote-workload",
        "energy quote / --workload gemm-fp32 --gpus 4 --cap 60% --json",
        inputs=("fleet", "none"),
        short=("none",),
    ),
    _on_store("energy-quote-csv", "energy quote / --job 2001 --csv", forms.rows, inputs=("mixed",)),
    Question(
        "replay",
        f"{REPLAY} --policy packed,pm-first,pal --seeds 2",
        inputs=("fleet", "mixed", "one", "none"),
        short=("mixed", "one", "none"),
    ),
    Question("replay-all", f"{REPLAY} --policy all --scheduler fifo,las,srtf", inputs=("fleet",), short=()),
    Question(
        "replay-page", f"{REPLAY} --policy packed --plot {{out}}/page.html", inputs=("fleet",), short=(), files=_page
    ),
    _on_store("check", f"{CHECK} --json", forms.checked, writes=True, short=("fleet",)),
    _on_store("check-quick", f"{CHECK} --quick --json", forms.checked, writes=True, short=("none",)),
    _on_store("check-nagios", f"{CHECK} --format nagios", forms.nagios, inputs=("fleet",), writes=True, short=()),
    _on_store("check-junit", f"{CHECK} --format junit", forms.junit, inputs=("fleet",), writes=True, short=()),
    _on_store("check-text", f"{CHECK} --format text", forms.status_only, inputs=("fleet",), writes=True, short=()),
    _on_store("check-no-driver", "check / --json", forms.checked, inputs=("fleet",), writes=True),
    _on_store("store-status", "store status / --json"),
    _on_store("store-compact", "store compact / --offline --json", forms.kept_up, writes=True, short=("mixed",)),
    _on_store("store-prune", "store prune / --keep 1d --dry-run --json", forms.kept_up, writes=True, short=("none",)),
    _on_store("store-upgrade", "store upgrade / --offline --json", inputs=("mixed", "none"), short=(), writes=True),
    Question("store-merge", "store merge {store} --into {out}/into --json", inputs=("mixed", "none"), short=("mixed",)),
    _on_store("store-retire", "store retire {gpu} / --json", writes=True, short=("mixed",)),
    _on_store(
        "jobs-import-again",
        "jobs import / --log {folder}/sacct.txt --cluster {cluster} --set gpus-per-node=4 --json",
        inputs=("fleet", "mixed"),
        short=("mixed",),
        writes=True,
    ),
    _on_store(
        "import-again",
        f"import / --cluster {{cluster}} --json {LONGHORN}/bert.csv.gz",
        inputs=("longhorn",),
        short=(),
        writes=True,
    ),
    _on_store("export-prometheus", "export prometheus / --once --max-age 5200w", forms.series),
    _on_store(
        "export-prometheus-dcgm",
        "export prometheus / --once --max-age 5200w --dcgm-names",
        forms.series,
        inputs=("fleet",),
        short=(),
    ),
    _on_store("campaign-plan", "campaign plan / --suite quick --json", inputs=("fleet",)),
    _on_store("campaign-status", "campaign status / --json", inputs=("fleet",)),
    *(
        _on_store(
            f"slurm-advise-{form}", f"{ADVISE} --format {form}", forms.lines, inputs=("fleet",), short=short, slurm=True
        )
        for form, short in (("exclude", ("fleet",)), ("prefer", ()), ("nodelist", ()), ("weights", ()))
    ),
    _on_store("slurm-advise", f"{ADVISE} --gpus 8 --json", inputs=("fleet",), short=(), slurm=True),
    _on_store(
        "slurm-campaign-plan",
        "campaign plan / --suite quick --campaign next --cluster {cluster} --budget 100h --json",
        inputs=("fleet",),
        slurm=True,
    ),
    Question(
        "slurm-jobs-chain",
        "jobs chain --script {folder}/slurm/train.sbatch --policy lead6 --dry-run --json",
        inputs=("fleet",),
        slurm=True,
    ),
    Question("slurm-jobs-wait", "jobs wait --nodes 8 --time 24:00:00 --json", inputs=("fleet",), slurm=True),
    _on_store("doctor", "doctor / --json", forms.sources, inputs=("fleet",)),
    _on_store("sql-json", f"sql / --json '{SELECT}'"),
    _on_store("sql-csv", f"sql / --csv '{SELECT}'", forms.rows),
    _on_store("sql-text", f"sql / '{SELECT}'", forms.status_only, inputs=("fleet", "none")),
    _on_store("sql-wrong", "sql / --json 'select nothing_of_that_name from gpus'", inputs=("fleet", "none")),
    _on_store("sql-writes", "sql / --json 'delete from gpus'", inputs=("fleet", "none")),
]
"""What is asked of inputs."""

ALONE = [
    Question("man", "man", forms.manual),
    Question("schema", "schema --json", forms.columns),
    Question("schema-markdown", "schema --markdown", forms.markdown),
    Question("schema-view", "schema gpus_now --json"),
    Question("probe-list", "probe list --backend simulated:model=V100 --json"),
    Question("demo-sample", "demo sample {out}/sample --gpus 8", forms.status_only, files=_sample),
    Question("demo-sim-describe", "demo sim --describe --model H100 --json"),
    Question("demo-sim", "demo sim --store {out}/store --gpus 4 --set hours=0.1 --fault hot=20% --json"),
    Question("demo", "demo --out {out}/demo --gpus 8 --fault pinned --json", forms.demonstrated, short=()),
    Question("probe-run", "probe run gemm-fp32 --store {out}/store --backend simulated:gpus=2 --campaign first --json"),
    Question("replay", "replay --trace {out}/jobs.csv --policy packed --nodes 4 --gpus-per-node 4 --workers 1 --json"),
    Question(
        "advise-burst",
        "advise burst --profile {out}/layer_times.csv --network {out}/network.json --batch 8 --gpus 2,8 --json",
    ),
    Question(
        "jobs-chain-study",
        "jobs chain-study --log {out}/log.csv --cluster-nodes 4 --policy reactive,lead6,average,test-only,known --json",
    ),
    Question(
        "jobs-chain-study-published",
        "jobs chain-study --log {out}/log.csv --cluster-nodes 4 --nodes 2 --as-published mirage --json",
        short=(),
    ),
    Question("tune-sweep", "tune --sweep {out}/sweep.csv --max-slowdown 5% --json"),
    Question("tune-sweep-across", "tune --sweep {out}/sweep.csv --max-slowdown 10% --set across=batch --json"),
    Question("no-store", "verdicts --store {out}/absent --json"),
    Question("tag-script", "jobs tag script", forms.status_only),
    *(
        Question(
            f"campaign-render-{scheduler}",
            f"campaign render --scheduler {scheduler} --campaign first --store {{out}}/fleet --program whorl",
            forms.lines,
        )
        for scheduler in ("slurm", "pbs", "lsf", "flux", "kubernetes")
    ),
]
"""What is asked without an input."""

NOT_ASKED = {
    "campaign doctor": "sends a job to a node: tests/slurm/test_campaign.py, on a real Slurm",
    "campaign pack": "packs installed packages for seconds: tests/jobs/test_node_archive.py",
    "campaign run": "sends jobs: tests/slurm/test_campaign.py, on a real Slurm",
    "collect": "reads GPUs until it is stopped: tests/contract/test_collect.py",
    "dashboard": "serves pages until it is stopped: tests/dashboards and tests/browser",
    "probe prolog": "times what it finds, also of a simulated node: tests/cli/test_probe.py",
    "jobs show": "reads what a job collected of itself: tests/jobs/test_own_job.py",
    "store files": "lists names that say when files were written: tests/store/test_engines.py",
    "store register": "lists names that say when files were written: tests/store/test_table_logs.py",
    "export otlp": "needs a collector that listens: tests/contract/test_otlp.py",
}
"""Verbs that are no question of this file, and why."""


def _words(question: Question, names: Mapping[str, object]) -> list[str]:
    return [word.format(**names) for word in shlex.split(question.words)]


def _reduced(question: Question, answer: Output, paths: dict[str, str], out: Path) -> Any:
    """Status, and what is compared of the answer and of the files that the command wrote."""
    value: dict[str, Any] = {"status": answer.status, "answer": question.form(answer)}
    if answer.status and not answer.stdout:  # an error is a sentence on standard error
        assert answer.stderr.count("whorl: ") >= 1, answer.stderr
        del value["answer"]
    if question.files is not None:
        value["files"] = question.files(out)
    return Reduction(paths)(value)


def _asked(question: Question, name: str, folder: Path, out: Path) -> Any:
    about = INPUTS[name]
    names = {"store": folder / "store", "folder": folder, "out": out, **{
        key: getattr(about, key) for key in ("cluster", "gpu", "workload")
    }}  # fmt: skip
    return _reduced(question, run(*_words(question, names)), {str(folder): "{input}", str(out): "{out}"}, out)


def _pairs() -> list[Any]:
    return [
        pytest.param(question, name, id=f"{name}-{question.name}",
                     marks=() if name in question.short else pytest.mark.long)
        for name in INPUTS for question in QUESTIONS if name in question.inputs
    ]  # fmt: skip


@pytest.mark.parametrize(("question", "name"), _pairs())
def test_an_answer_is_that_of_its_golden_file(
    question: Question,
    name: str,
    input_folder: InputFolder,
    input_copy: InputFolder,
    golden: Golden,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = input_copy(name) if question.writes else input_folder(name)
    if question.slurm:
        monkeypatch.setenv("PATH", f"{folder / 'slurm'}:/usr/bin:/bin")
    out = tmp_path / "out"
    out.mkdir()
    golden(f"{name}/{question.name}", _asked(question, name, folder, out))


@pytest.mark.parametrize("name", ["longhorn", "fleet", "mixed"])
def test_the_commands_that_made_an_input_print_their_golden_files(
    name: str, input_folder: InputFolder, golden: Golden
) -> None:
    folder = input_folder(name)
    for path in sorted((folder / "made").iterdir()):
        reduction = Reduction({str(folder): "{input}"})
        golden(f"{name}/made-{path.stem}", reduction(json.loads(path.read_text())))


@pytest.mark.parametrize("question", [
    pytest.param(question, id=question.name, marks=() if question.short else pytest.mark.long) for question in ALONE
])  # fmt: skip
def test_an_answer_without_an_input_is_that_of_its_golden_file(
    question: Question, golden: Golden, tmp_path: Path
) -> None:
    (tmp_path / "jobs.csv").write_text(trace())
    (tmp_path / "sweep.csv").write_text(sweep())
    (tmp_path / "log.csv").write_text(chain_log())
    write_files(tmp_path)
    names = {"out": tmp_path}
    golden(
        f"alone/{question.name}", _reduced(question, run(*_words(question, names)), {str(tmp_path): "{out}"}, tmp_path)
    )


@pytest.mark.long
@pytest.mark.parametrize("name", INPUTS)
def test_every_table_and_view_has_the_rows_of_its_golden_file(
    name: str, input_folder: InputFolder, golden: Golden
) -> None:
    """By SQL: rows, and of each column its type, how many values it has, and their extremes and sum."""
    folder = input_folder(name)
    reduction = Reduction({str(folder): "{input}"})
    schema = run("schema", "--json").json()
    tables = {entry["name"]: _contents(folder / "store", entry) for entry in (*schema["tables"], *schema["views"])}
    golden(f"{name}/tables", reduction(tables))


def _contents(store: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """How many rows a table or view has; of each column that has values, how many, and what they are like."""
    expressions = ["count(*) as rows"]
    for column in entry["columns"]:
        quoted = f'"{column["name"]}"'
        figures = [f"count({quoted})"]
        if column["type"] not in ("DOUBLE", "BOOLEAN"):
            figures.append(f"count(distinct {quoted})")
        if column["type"] in ("DOUBLE", "BIGINT"):
            figures += [f"min({quoted})", f"max({quoted})", f"sum({quoted})::double"]
        elif column["type"] in ("TIMESTAMP", "BOOLEAN"):
            figures += [f"min({quoted})", f"max({quoted})"]
        expressions += [f"{figure} as {_alias(column['name'], figure)}" for figure in figures]
    answer = run("sql", "--store", store, "--json", f"select {', '.join(expressions)} from {entry['name']}")
    assert answer.status == 0, answer.stderr
    (row,) = answer.json()["rows"]
    count = row.pop("rows")
    columns: dict[str, dict[str, Any]] = {}
    for alias, value in row.items():
        column, _, figure = alias.rpartition(" ")
        columns.setdefault(column, {})[figure] = value
    return {"rows": count, "columns": {name: figures for name, figures in columns.items() if figures["count"]}}


def _alias(column: str, figure: str) -> str:
    """`"power_w max"` of `max("power_w")`."""
    return f'"{column} {"distinct" if "distinct" in figure else figure.partition("(")[0]}"'


def test_every_verb_is_asked_or_says_why_not() -> None:
    verbs = set(_verbs(cli, ""))
    questions = [question.words for question in (*QUESTIONS, *ALONE)]
    verbs_of_questions = {
        verb for verb in verbs if any(words == verb or words.startswith(f"{verb} ") for words in questions)
    }
    assert verbs - verbs_of_questions == set(NOT_ASKED)


def _verbs(command: click.Command, name: str) -> Iterator[str]:
    """Every verb with its subcommands. A group that works without one is a verb too."""
    if isinstance(command, click.Group):
        for word, subcommand in command.commands.items():
            yield from _verbs(subcommand, f"{name} {word}".strip())
    if name and (not isinstance(command, click.Group) or command.invoke_without_command):
        yield name
