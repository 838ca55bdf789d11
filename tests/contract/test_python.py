"""The Python functions: each replies what its verb prints, shows itself, and takes a path or a store."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import click
import pytest
from click.testing import CliRunner

import whorl
from whorl.cli import cli
from whorl.errors import InputError, StoreError
from whorl.tests.burst_files import write_files
from whorl.tests.contract.harness import InputFolder
from whorl.tests.contract.inputs import ACCOUNTED, INPUTS, SITTING_S, job
from whorl.tests.sizes import sample

pytestmark = pytest.mark.usefixtures("stores_are_copied")

SECOND_DAY = "2026-01-05T12:00"  # between the two sittings of the fleet


def run(*words: object) -> Any:
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.fixture(scope="module")
def fleet(input_copy: InputFolder) -> Path:
    """The simulated fleet of the contract suite: two sittings, jobs and telemetry."""
    return input_copy("fleet") / "store"


@pytest.fixture(scope="module")
def slow_gpu() -> str:
    return INPUTS["fleet"].gpu


Call = Callable[[Any, str], Any]
CASES: dict[str, tuple[Call, list[str]]] = {
    "verdicts": (lambda store, _: whorl.verdicts(store), []),
    "verdicts --since": (lambda store, _: whorl.verdicts(store, since=SECOND_DAY), [SECOND_DAY]),
    "explain GPU": (whorl.explain, []),
    "verdicts fingerprint": (lambda store, _: whorl.fingerprint(store), []),
    "verdicts fingerprint --gpu GPU": (lambda store, gpu: whorl.fingerprint(store, gpu=gpu), []),
    "verdicts diff --before": (
        lambda store, _: whorl.diff(store, before=datetime.fromisoformat(SECOND_DAY), after=SECOND_DAY),
        [SECOND_DAY, "--after", SECOND_DAY],
    ),
    "verdicts variability --set replicates=100 --workload gemm-fp32": (
        lambda store, _: whorl.variability(store, replicates=100, workload="gemm-fp32"),
        [],
    ),
    "verdicts variability --across": (lambda store, _: whorl.across(store), []),
    "verdicts plan --budget 1h": (lambda store, _: whorl.plan(store, budget="1h"), []),
    "energy --by user": (lambda store, _: whorl.energy(store, "user"), []),
    "energy --job 1001": (lambda store, _: whorl.energy(store, job="1001"), []),
    "energy --since 2026-01-05T12:00 --by gpu": (lambda store, _: whorl.energy(store, "gpu", since=SECOND_DAY), []),
    "energy calibrate --dry-run": (lambda store, _: whorl.energy_calibrate(store, dry_run=True), []),
    "energy reconcile": (lambda store, _: whorl.energy_reconcile(store), []),
    "energy excess --by job": (lambda store, _: whorl.energy_excess(store, "job"), []),
    "jobs idle --at-least 1s": (lambda store, _: whorl.idle_gpus(store, at_least="1s"), []),
    "energy quote --job 1001": (lambda store, _: whorl.energy_quote(store, "1001"), []),
    "advise --workload gemm-fp32 --gpus 4 --no-scheduler": (
        lambda store, _: whorl.advise(store, "gemm-fp32", gpus=4, no_scheduler=True),
        [],
    ),
    "advise spb --workload gemm-fp32 --gpus 4": (
        lambda store, _: whorl.advise_spb(store, workload="gemm-fp32", gpus=4),
        [],
    ),
}
"""By the words of a command line without the store: the function, and further words."""
LISTS = {
    "advise": "nodes",
    "advise spb": "rows",
    "explain": "places",
    "verdicts diff": "moved",
    "verdicts plan": "gpus",
}
"""Where the rows of a document are not under `rows`."""
CLOCK = {"wall_s", "seconds", "bits", "slow_chance", "age_days", "newest_days", "oldest_days"}


def without_clock(value: Any) -> Any:
    """A document without what depends on when it is made."""
    if isinstance(value, dict):
        return {key: without_clock(inner) for key, inner in value.items() if key not in CLOCK}
    return [without_clock(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("words", sample(CASES, short=1))
def test_a_function_replies_what_its_verb_prints(words: str, fleet: Path, slow_gpu: str) -> None:
    function, arguments = CASES[words]
    reply = function(whorl.Store.open(fleet), slow_gpu)
    line = [slow_gpu if word == "GPU" else word for word in words.split()]
    printed = run(*line, *arguments, "--store", fleet, "--json")
    assert printed.exit_code == 0, printed.output
    document = json.loads(printed.stdout)
    assert document["schema"].startswith("whorl.")
    assert without_clock(reply.json()) == without_clock(document)
    assert reply.frame.height == len(document[LISTS.get(" ".join(line[:2]), LISTS.get(line[0], "rows"))])
    assert reply.frame.width > 0, "also where there is no row"
    page = ET.fromstring(reply._repr_html_())
    assert page.tag == "div"
    assert all(cell in repr(reply) for table in page.iter("table") for cell in table.itertext() if len(cell) < 20)


STORES: dict[str, Callable[[Any], Any]] = {
    "check --backend simulated:gpus=2": lambda store: whorl.check(store, backend="simulated", gpus=2),
    "probe run launch --suite quick --backend simulated --campaign again": lambda store: whorl.measure(
        store, "launch", suite="quick", backend="simulated", campaign="again"
    ),
}
"""Verbs that store runs: the function and the command line each have a store."""


@pytest.mark.parametrize("words", sample(STORES, short=1))
def test_a_function_that_stores_runs_replies_what_its_verb_prints(words: str, tmp_path: Path) -> None:
    for name in ("function", "verb"):
        whorl.measure(tmp_path / name, "gemm-fp32", suite="quick", backend="simulated", gpus=2, campaign="first")
    reply = STORES[words](whorl.Store.open(tmp_path / "function"))
    printed = run(*words.split(), "--store", tmp_path / "verb", "--json")
    document = json.loads(printed.stdout)
    assert without_clock(reply.json()) == without_clock(document)
    assert reply.frame.height == len(document["gpus" if words.startswith("check") else "runs"]) > 0
    ET.fromstring(reply._repr_html_())


def test_a_collector_replies_what_it_stored(tmp_path: Path) -> None:
    store = tmp_path / "S"
    reply = whorl.collect(store, backend="simulated", gpus=2, interval=0.05, duration=0.2)
    words = ["collect", "--store", str(store), "--backend", "simulated:gpus=2", "--duration", "0.2", "--json"]
    printed = run(*words)
    document = reply.json()
    assert document.keys() == json.loads(printed.stdout).keys()
    stored = whorl.Store.open(store).sql("select count(*) as rows from telemetry").polars()["rows"][0]
    assert document["rows"] + json.loads(printed.stdout)["rows"] == stored > 0
    assert (document["rows"], document["signal"]) == (2 * document["ticks"], None)
    assert reply.frame.height == 1
    ET.fromstring(reply._repr_html_())


@pytest.mark.parametrize("words", sample(CASES, short=7))
def test_no_store_is_one_sentence(words: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="absent") as error:
        CASES[words][0](tmp_path / "absent", "c001-1/0")
    assert "\n" not in str(error.value)


def test_names_are_escaped_where_a_reply_shows_itself(tmp_path: Path) -> None:
    cluster = "<b>R&D</b>"
    probes = ("gemm-fp32", "stream-triad")
    whorl.measure(tmp_path / "S", *probes, suite="quick", backend="simulated", gpus=4, cluster=cluster)
    for function in (whorl.verdicts, whorl.variability):
        page = function(tmp_path / "S")._repr_html_()
        assert escape(cluster) in page
        assert cluster not in page
        assert cluster in "".join(ET.fromstring(page).itertext())
    assert whorl.verdicts(tmp_path / "S").frame.columns[:2] == ["level", "name"], "also where nothing was found"


@pytest.mark.long
def test_commands_in_a_reply_name_the_store(fleet: Path) -> None:
    for store in (str(fleet), whorl.Store.open(fleet)):
        assert f"--store {fleet}" in repr(whorl.verdicts(store))


def test_a_time_is_a_datetime_or_as_an_option_spells_it(fleet: Path) -> None:
    berlin = datetime.fromisoformat("2026-01-05T13:00+01:00")
    assert whorl.energy(fleet, since=berlin).json() == whorl.energy(fleet, since=SECOND_DAY).json()
    with pytest.raises(InputError, match="is not a date"):
        whorl.verdicts(fleet, since="yesterday")
    with pytest.raises(InputError, match="is not a time"):
        whorl.measure(fleet, "gemm-fp32", backend="simulated", time_limit="soon")


def test_a_wrong_choice_lists_the_choices(fleet: Path) -> None:
    with pytest.raises(InputError, match=r"'nope'; .* job, user, account, gpu, node, day"):
        whorl.energy(fleet, "nope")
    with pytest.raises(InputError, match=r"'nope'; .* gpu, node, job"):
        whorl.energy_excess(fleet, "nope")


def test_an_error_names_the_arguments_of_python(tmp_path: Path) -> None:
    trace = tmp_path / "one.csv"
    trace.write_text("job_id,submit_time,num_gpus,duration,model\n1,0,1,10,a\n")
    with pytest.raises(InputError, match="store for the GPUs measured there, or nodes and gpus_per_node for") as error:
        whorl.replay(trace)
    assert "--" not in str(error.value)
    assert "--store DIR" in run("replay", "--trace", trace).output
    with pytest.raises(InputError, match=r"as_published fixes what classes would change"):
        whorl.replay(trace, as_published="pal-sc24", classes={"a": "b"})


@pytest.mark.long
def test_what_is_looked_at_is_drawn_by_plotly(fleet: Path) -> None:
    """In a process of its own: the tests have every figure made by Plotly."""
    code = """
import sys, whorl
looked = whorl.look(sys.argv[1])
gpu = next(iter(looked.lines.gpus))
for figure in looked.overview(), looked.distribution("gemm-fp32"), looked.machine(), looked.timeline(gpu):
    print(type(figure).__module__, len(figure.to_html()) > 10_000)
"""
    done = subprocess.run([sys.executable, "-c", code, fleet], capture_output=True, text=True)
    assert done.stdout.splitlines() == ["plotly.graph_objs._figure True"] * 4, done.stderr


def test_imports_reply_what_their_verbs_print(tmp_path: Path) -> None:
    times, jobs = tmp_path / "times.csv", tmp_path / "sacct.txt"
    times.write_text("run,board,ms\n1,a,10\n2,b,11\n3,b,12\n4,a,\n")
    jobs.write_text(f"{ACCOUNTED}\n{job(1, 'n1', SITTING_S)}\n")
    meaning = {"run": "run", "board": "gpu", "ms": "time:ms"}
    reply = whorl.import_files(times, tmp_path / "S", cluster="c", workload="w", map=meaning)
    mapped = [word for column, means in meaning.items() for word in ("--map", f"{column}={means}")]
    line = ("import", "--store", tmp_path / "T", "--cluster", "c", "--workload", "w", *mapped, times, "--json")
    assert reply.json() == json.loads(run(*line).stdout)
    assert reply.frame.select("kept", "refused").rows() == [(3, 1)]
    again = whorl.import_files([times, tmp_path / "absent.csv"], tmp_path / "S", cluster="c", workload="w", map=meaning)
    assert again.frame["already_imported"].to_list() == [True]
    assert [path.name for path, _ in again.failed] == ["absent.csv"]
    assert "absent.csv" in "".join(ET.fromstring(again._repr_html_()).itertext())
    with pytest.raises(InputError, match=r"absent\.csv"):
        whorl.import_files(tmp_path / "absent.csv", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    booked = whorl.import_jobs(tmp_path / "S", file=jobs, gpus_per_node=["4"])
    words = ("jobs", "import", "--store", tmp_path / "T", "--log", jobs, "--set", "gpus-per-node=4", "--json")
    assert booked.json() == json.loads(run(*words).stdout)
    assert booked.frame.height == 1
    with pytest.raises(InputError, match="leave out since"):
        whorl.import_jobs(tmp_path / "S", file=jobs, since="7d")


@pytest.mark.long
def test_burst_plans_are_what_the_verb_prints(fleet: Path, tmp_path: Path) -> None:
    profile, network = write_files(tmp_path)
    reply = whorl.advise_burst(profile, network, batch=8, gpus=[2, 4], store=fleet, workload="gemm-fp32")
    words = ("--batch", 8, "--gpus", "2,4", "--store", fleet, "--workload", "gemm-fp32", "--json")
    printed = run("advise", "burst", "--profile", profile, "--network", network, *words)
    assert reply.json() == json.loads(printed.stdout)
    assert reply.frame.height == 2
    ET.fromstring(reply._repr_html_())


@pytest.mark.long
def test_a_replay_replies_what_its_verb_prints(fleet: Path, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("job_id,num_gpus,submit_time,duration,model\na,4,0,100,x\nb,8,10,200,x\nc,4,20,50,x\n")
    arguments = ["--seeds", 2, "--workers", 1, "--json"]
    shape: list[tuple[Any, dict[str, Any], list[object]]] = [
        (None, {"nodes": 2, "gpus_per_node": 4}, ["--nodes", 2, "--gpus-per-node", 4]),
        (fleet, {"classes": {"*": "gemm-fp32"}}, ["--store", fleet, "--class", "*=gemm-fp32"]),
    ]
    for store, options, words in shape:
        reply = whorl.replay(trace, store, policy="packed", seeds=2, workers=1, **options)
        document = json.loads(run("replay", "--trace", trace, "--policy", "packed", *words, *arguments).stdout)
        assert without_clock(reply.json()) == without_clock(document)
        assert reply.frame.height == len(document["rows"]) > 0
        ET.fromstring(reply._repr_html_())
    with pytest.raises(TypeError, match="polcy"):
        whorl.replay(trace, nodes=2, gpus_per_node=4, polcy="packed")  # type: ignore[call-arg]
    with pytest.raises(StoreError, match="absent"):
        whorl.replay(trace, tmp_path / "absent")


OTHER_NAMES = {"import": "import_files", "jobs idle": "idle_gpus", "jobs import": "import_jobs", "probe run": "measure"}
OTHER_NAMES |= {
    "campaign plan": "plan_campaign",
    "campaign run": "run_campaign",
    "sql": "Store",
    "store compact": "Store",
    "store files": "Store",
    "store merge": "import_files",
}
OTHER_NAMES |= {f"verdicts {name}": name for name in ("diff", "fingerprint", "plan", "variability")}
OTHER_NAMES |= {"store prune": "Store"}
WITHOUT_A_FUNCTION = {
    "advise apply": "changes a job of the batch system, which a person does",
    "campaign doctor": "a look at a node, to be read once",
    "campaign pack": "writes an archive for nodes",
    "campaign render": "prints a script",
    "dashboard": "serves pages until it is stopped",
    "demo": "shows the others to a newcomer",
    "doctor": "a look at this machine, to be read once",
    "export otlp": "sends until it is stopped",
    "export prometheus": "serves a page until it is stopped",
    "jobs chain": "submits jobs of the user's, one after another",
    "jobs chain-study": "a study of a log, to be read once",
    "jobs wait": "asks the batch system, which a person does",
    "jobs show": "with whorl.collect(for_job=True) has the same summary",
    "jobs tag": "runs in a prolog",
    "man": "prints pages",
    "probe list": "prints what whorl has",
    "probe prolog": "runs in a prolog",
    "demo sample": "writes files to try whorl with",
    "schema": "prints what whorl has",
    "demo sim": 'a simulated fleet: whorl.measure(backend="simulated") measures one',
    "store register": "changes what other engines see, which a person or a timer does",
    "store retire": "changes what a store expects, which a person does",
    "store status": "a look at the files of a store",
    "store upgrade": "changes a store once, which a person does",
}
"""Why a verb has no Python function."""


def _commands(command: Any, words: str = "") -> Iterator[str]:
    """Each command, and each group that runs by itself."""
    group = isinstance(command, click.Group)
    if words and (not group or command.invoke_without_command):
        yield words
    for name, inner in command.commands.items() if group else ():
        yield from _commands(inner, f"{words} {name}".strip())


def test_the_public_names_are_listed_and_each_verb_has_its_function() -> None:
    assert set(whorl.__all__) <= set(dir(whorl))
    assert all(getattr(whorl, name) is not None for name in dir(whorl))
    verbs = {words: OTHER_NAMES.get(words, re.sub("[ -]", "_", words)) for words in _commands(cli)}
    assert {words for words, name in verbs.items() if name not in whorl.__all__} == WITHOUT_A_FUNCTION.keys()


def test_the_options_of_a_replay_have_the_names_and_defaults_of_the_verb() -> None:
    verb: Any = cli.commands["replay"]
    options = verb.make_context("replay", []).params
    defaults = sys.modules[whorl.replay.__module__].DEFAULTS
    assert options.keys() == {"trace", "store", "as_json"} | defaults.keys() - {"progress"}
    assert {name: options[name] or None for name in options.keys() & defaults.keys()} == {
        name: defaults[name] or None for name in options.keys() & defaults.keys()
    }
