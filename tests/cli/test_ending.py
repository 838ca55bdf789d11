"""How a command ends when somebody ends it: quietly, with the status that a shell expects, and nothing lost."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from whorl.cli import _dependency, cli
from whorl.errors import StoreError
from whorl.store import Store
from whorl.tests.checks import not_none
from whorl.tests.sizes import sample
from whorl.tests.stores import new_store
from whorl.tests.without import COMMAND, run_without

WHORL = [sys.executable, "-m", "whorl"]


def begun(*words: object, **environment: str) -> subprocess.Popen[str]:
    """A command in a process of its own, whose outputs are pipes."""
    command, pipe = [*WHORL, *map(str, words)], subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **environment})


def test_a_reader_that_has_enough_ends_it_as_a_signal_would(tmp_path: Path) -> None:
    """With PYTHONUNBUFFERED, Python itself would drop what the pipe did not take, and report no error."""
    new_store(tmp_path / "S")
    query = "select range from range(20000)"  # more than a pipe holds
    with begun("sql", "--store", tmp_path / "S", query, PYTHONUNBUFFERED="1") as process:
        not_none(process.stdout).readline()
        not_none(process.stdout).close()
        assert process.wait() == 128 + signal.SIGPIPE
        assert not_none(process.stderr).read() == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("verb", sample(["schema --json", "schema", "probe list"], short=1))
def test_an_answer_that_does_not_fit_on_the_disk_is_one_sentence(verb: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*WHORL, *verb.split()], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "standard output (No space left" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", sample(["--help", "schema --json"], short=1))
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_answer_that_is_cut_is_no_success(tmp_path: Path, words: str, unbuffered: str) -> None:
    command = f"ulimit -f 1; exec {sys.executable} -m whorl {words} > {tmp_path}/answer"
    # Python would keep what it compiled in files that are cut, too, which no later process could read.
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["sh", "-c", command], env=environment, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert "standard output (File too large" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.long
def test_without_standard_output_a_command_does_its_work(tmp_path: Path) -> None:
    store = str(tmp_path / "S")
    run = f"probe run launch --suite quick --backend simulated:gpus=1 --store {store}"
    done = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m whorl {run} >&-"], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert Store.open(store).sql("select count(*) n from runs").to_pylist() == [{"n": 1}]
    closed = subprocess.run(["sh", "-c", f"exec {sys.executable} -m whorl schema >&- 2>&-"], check=False)
    assert closed.returncode == 0


@pytest.mark.long
@pytest.mark.parametrize("delay", [0.8, 0.3])
def test_an_interrupted_import_can_be_run_again(delay: float, tmp_path: Path) -> None:
    files, rows, store = [tmp_path / f"{number}.csv" for number in range(4)], 10_000, tmp_path / "S"
    line = "sgemm,GPU-00000000-0000-0000-0000-{:012d},{},{}"
    for number, path in enumerate(files):
        numbers = range(number * rows, (number + 1) * rows)
        lines = [line.format(i % 40, 1_590_000_000 + i, 2400 + i % 97) for i in numbers]
        path.write_text("\n".join(["exp,uuid,ts,perf_ms", *lines]))
    words = ("import", "--store", str(store), *map(str, files))
    with begun(*words) as process:
        time.sleep(delay)
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode in (128 + signal.SIGINT, -signal.SIGINT, 0), errors
    if process.returncode == 128 + signal.SIGINT:
        assert "whorl: interrupted" in errors
    if (store / "store.toml").exists():
        counted = Store.open(store).sql("select count(*) n from runs").to_pylist()[0]["n"]
        assert counted % rows == 0
    subprocess.run([*WHORL, *words], check=True, capture_output=True)
    assert Store.open(store).sql("select count(*) n from measurements").to_pylist() == [{"n": 4 * rows}]


def test_an_interrupt_that_a_library_answers_in_its_own_way_is_an_interrupt_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise RuntimeError("Query interrupted") from None

    monkeypatch.setattr(Store, "answer", interrupted)
    new_store(tmp_path / "S")
    before = signal.getsignal(signal.SIGINT)
    answer = CliRunner().invoke(cli, ["sql", "--store", str(tmp_path / "S"), "select 1"])
    assert answer.exit_code == 128 + signal.SIGINT, answer.output
    assert "whorl: interrupted" in answer.output
    assert signal.getsignal(signal.SIGINT) is before


def test_an_interrupt_waits_until_a_module_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in C++, as DuckDB's, ends the process with SIGABRT where its start meets an exception."""
    (tmp_path / "interrupted_at_start.py").write_text(
        "import signal\n\nsignal.raise_signal(signal.SIGINT)\nfor _ in range(1000):\n    pass\nloaded = True\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def answer(*_: object, **__: object) -> None:
        assert importlib.import_module("interrupted_at_start").loaded
        time.sleep(60)

    monkeypatch.setattr(Store, "answer", answer)
    new_store(tmp_path / "S")
    alarm = signal.getsignal(signal.SIGALRM)
    ended = CliRunner().invoke(cli, ["sql", "--store", str(tmp_path / "S"), "select 1"])
    assert ended.exit_code == 128 + signal.SIGINT, ended.output
    assert sys.modules["interrupted_at_start"].loaded
    assert signal.getsignal(signal.SIGALRM) is alarm


@pytest.mark.long
def test_ctrl_c_while_duckdb_works_says_that_it_was_interrupted(tmp_path: Path) -> None:
    new_store(tmp_path / "S")
    query = "select count(*) from range(100000000) a, range(100000) b where a.range % 7 = b.range % 11"
    for delay in (1, 3, 9, 27):  # on a busy machine the interrupt may come before the command has begun
        with begun("sql", "--store", tmp_path / "S", query) as process:
            time.sleep(delay)
            os.kill(process.pid, signal.SIGINT)
            end = threading.Timer(60, process.kill)
            end.start()
            _, errors = process.communicate()
            end.cancel()
        if process.returncode != -signal.SIGINT:
            break
    assert process.returncode == 128 + signal.SIGINT, errors
    assert errors == "whorl: interrupted; what was stored stays, and the command can be run again\n"


@pytest.mark.parametrize(
    ("verb", "module"), sample([(("sql", "select 1"), "duckdb"), (("advise",), "polars")], short=1)
)
def test_a_missing_dependency_is_a_sentence(verb: tuple[str, ...], module: str, tmp_path: Path) -> None:
    new_store(tmp_path / "S")
    workload = ("--workload", "x") if verb[0] == "advise" else ()
    # The package of DuckDB has two modules.
    answer = run_without({module, f"_{module}"}, COMMAND, *verb, "--store", str(tmp_path / "S"), *workload)
    assert answer.returncode == 2, answer.stderr
    assert answer.stderr.count("\n") == 1
    assert f"pip install {module}, " in answer.stderr


def test_a_module_of_our_own_that_is_missing_is_no_missing_dependency() -> None:
    assert _dependency("whorl.cli.output") is None
    assert _dependency(None) is None
    assert _dependency("polars.io") is not None


# -- store -------------------------------------------------------------------------------------------------------------
# `whorl store compact`: what it says of what it leaves, and of another process at work.


def whorl(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["store", *map(str, arguments)])


def reading(store: Store, node: str) -> None:
    with store.journal(node, background=False, offline=True) as journal:
        journal.append(time.time_ns(), ["g"], {"cluster": "c", "power_mw": 1})


def test_a_second_compactor_says_so_and_ends(store: Store) -> None:
    code = "import sys; from pathlib import Path; from whorl.store import replacing\n"
    code += "with replacing.Compactor(Path(sys.argv[1]), replacing.OFFLINE): print(flush=True); sys.stdin.readline()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code, store.root], stdin=pipe, stdout=pipe, text=True) as holder:
        not_none(holder.stdout).readline()
        for verb in (["compact"], ["prune", "--keep", "1d"]):
            done = whorl(*verb, "--store", store.root)
            assert (done.exit_code, f"process {holder.pid} on " in done.stdout) == (0, True)
        with pytest.raises(StoreError, match=f"process {holder.pid} on "):
            store.compact()
        holder.communicate("\n")
    assert whorl("compact", "--offline", "--store", store.root).exit_code == 0


def test_compacting_says_what_it_left(store: Store) -> None:
    reading(store, "n1")
    (path,) = store.files("telemetry")
    path.write_bytes(path.read_bytes()[:-1])
    with store.journal("n2", background=False, offline=True) as journal:
        journal.append(time.time_ns(), ["g"], {"cluster": "c", "power_mw": 2})
        done = whorl("compact", "--offline", "--store", store.root, "--json")
        text = whorl("compact", "--offline", "--store", store.root).stdout
    sentence = json.loads(done.stdout)
    assert done.exit_code == 1
    assert [Path(entry).name.partition("-")[0] for entry in sentence["open_journals"]] == ["n2"]
    assert [entry.partition(": ")[0] for entry in sentence["unreadable"]] == [str(path)]
    assert "1 journal left" in text
    assert "1 file left" in text
    path.unlink()
    assert whorl("compact", "--offline", "--store", store.root).exit_code == 0
