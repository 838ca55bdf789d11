"""`whorl collect` over a real exporter's server and a real pydcgm with our engine: all that goes wrong on the way."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli
from whorl.collectors import collect, sampler
from whorl.collectors.backend import Backend, Device
from whorl.errors import InputError
from whorl.tests.collectors.meanwhile import LONG, meanwhile, until
from whorl.tests.dcgm_library import DcgmEngine, free_port
from whorl.tests.endless import SLOW, serving
from whorl.tests.exporter import Answer, Exported, exporting, page, usual
from whorl.tests.stores import ask, new_store
from whorl.tests.without import COMMAND, NODE, run_without


def collected(store: Path, *options: str) -> Result:
    new_store(store)
    return CliRunner().invoke(cli, ["collect", "--store", str(store), "--node", "n1", *options])


# Exporters


def played(*answers: Answer) -> Callable[[str], Answer]:
    """One answer after the other; the last one stays."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


def shown(second: int, **more: Any) -> str:
    """The page of two GPUs so many seconds later."""
    numbers = usual(100 + second, 1_000_000 + 100_000 * second)
    return page([Exported(number, numbers) for number in range(2)], **more)


def test_collect_goes_on_whatever_an_exporter_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "_SECOND_NS", 100_000_000)
    good = [Answer(shown(second)) for second in range(8)]
    strange = shown(3).replace(" 103", " NaN", 1).replace(" 103", " +Inf", 1)
    answers = [
        *(good[0], good[1], good[2]),
        Answer(strange),
        Answer("the exporter is not well", 500),
        Answer(shown(4), cut=len(shown(4)) // 2),
        Answer("<html>log in first</html>", headers={"Content-Type": "text/html"}),
        good[5],
        Answer(shown(6, names={"DCGM_FI_DEV_GPU_TEMP": "DCGM_FI_DEV_HEAT"})),
        good[7],
    ]
    store = tmp_path / "S"
    with exporting(played(*answers)) as exporter:
        options = ("--backend", f"prometheus:url={exporter.url}", "--interval", "0.1")
        done = collected(store, *options, "--duration", "1.5")
    assert done.exit_code == 0, done.stderr
    assert "Traceback" not in done.stderr
    told = ask(store, "select power_mw, temperature_c, energy_mj from telemetry order by energy_mj, power_mw")
    assert [row["energy_mj"] for row in told] == [
        1_000_000 + 100_000 * second for second in (0, 1, 2, 3, 5, 6, 7) for _ in range(2)
    ]
    assert [row["power_mw"] for row in told if row["energy_mj"] == 1_300_000] == [None, None]
    assert {row["temperature_c"] for row in told if row["energy_mj"] == 1_600_000} == {None}
    events = ask(store, "select kind, detail from events order by ts")
    kinds = [event["kind"] for event in events]
    assert (kinds.count("source_gone"), kinds.count("source_back")) == (1, 1)
    sentence = next(event["detail"] for event in events if event["kind"] == "source_gone")
    assert any(words in sentence for words in ("500", "cut short", "GPU"))  # which it was when somebody looked
    assert any("DCGM_FI_DEV_GPU_TEMP is not on the page" in event["detail"] for event in events)
    assert done.stderr.count("DCGM_FI_DEV_GPU_TEMP is not on the page") == 1
    assert done.stderr.count(sentence) == done.stderr.count("answers again") == 1


@pytest.mark.long
@pytest.mark.parametrize("attack", SLOW)
def test_a_neighbour_that_never_ends_keeps_neither_the_others_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str
) -> None:
    monkeypatch.setattr("whorl.collectors.exporter.exporter._LEAST_S", 0.3)
    with serving(SLOW[attack]) as (place, _), exporting(played(*(Answer(shown(n)) for n in range(1000)))) as good:
        options = (
            "--backend",
            f"prometheus:url=http://{place}",
            "--backend",
            f"prometheus:url={good.url}",
            "--interval",
            "0.1",
        )
        done = collected(tmp_path / "S", *options, "--duration", "2")
    assert done.exit_code == 0, done.stderr
    (told,) = ask(
        tmp_path / "S", "select count(*) n, count(distinct gpu) g, count(distinct energy_mj) e from telemetry"
    )
    assert (told["g"], told["n"]) == (2, 2 * told["e"])
    assert len(good.asked) - 1 <= told["e"] <= len(good.asked)  # the last page may come after the end
    (gone,) = ask(tmp_path / "S", "select detail from events where kind = 'source_gone'")
    assert place in gone["detail"]
    assert done.stderr.count(gone["detail"]) == 1


@pytest.mark.long
def test_a_server_that_never_ends_does_not_keep_the_collector_at_the_start(tmp_path: Path) -> None:
    with serving(SLOW["100 Continue for ever"]) as (place, sent):
        command = [sys.executable, "-m", "whorl", "collect", "--backend", f"prometheus:url=http://{place}"]
        command += ["--interval", "10", "--store", str(tmp_path / "S")]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            while not sent[0] and process.poll() is None:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            errors = process.communicate(timeout=60)[1]
    assert process.returncode == 0, errors
    assert "stopped before anything was read" in errors


def test_a_page_does_not_steer_the_terminal(tmp_path: Path) -> None:
    labels = {"modelName": "A100\x1b]0;title\x07\x1b[31m"}
    with exporting(page([Exported(0, usual(), labels=labels)])) as exporter:
        options = ("--backend", f"prometheus:url={exporter.url}", "--duration", "0.1")
        new_store(tmp_path / "S")
        done = CliRunner().invoke(cli, ["collect", "--store", str(tmp_path / "S"), *options], color=True)
    assert done.exit_code == 0, done.stderr
    assert "(A100\\x1b]0;title\\x07\\x1b[31m)" in done.stderr
    assert not set(done.stderr) & {"\x1b", "\x07"}


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_an_exporter_that_is_not_there(tmp_path: Path, host: str) -> None:
    url = f"http://{host}:{free_port()}/metrics"
    done = collected(tmp_path / "S", "--backend", f"prometheus:url={url}")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert url in done.stderr


# Nodes that only measure


@pytest.mark.long
@pytest.mark.parametrize("backend", ["dcgm", "prometheus"])
def test_a_node_without_the_packages_of_the_analysis_collects(
    stopped_engine: DcgmEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    store = new_store(tmp_path / "S").root
    options = ["--interval", "0.1", "--duration", "1.5", "--store", store, "--backend", backend]
    with exporting(shown(0)) as exporter:
        if backend == "dcgm":
            stopped_engine.nvml.write("gpus 2", "model H100")
            stopped_engine.start()
            for name, value in stopped_engine.environment().items():
                if name.startswith(("LD_", "WHORL_")):
                    monkeypatch.setenv(name, value)
        where = (
            ["--backend", f"dcgm:host={stopped_engine.address}"]
            if backend == "dcgm"
            else ["--backend", f"prometheus:url={exporter.url}"]
        )
        done = run_without(NODE, COMMAND, "collect", *options, *where)
    assert done.returncode == 0, done.stderr
    (told,) = ask(store, "select count(*) n, count(distinct gpu) g, count(power_mw) p from telemetry")
    assert told["g"] == 2
    assert told["p"] > told["n"] / 2 > 0


# DCGM

SPAN = "(epoch_ns(max(ts)) - epoch_ns(min(ts))) / 1e9"


@pytest.fixture
def two(engine: DcgmEngine, monkeypatch: pytest.MonkeyPatch) -> DcgmEngine:
    """An engine with two H100s; this process has its library loaded, and asks it ten times a second."""
    monkeypatch.setattr(sampler, "_SECOND_NS", 100_000_000)
    engine.nvml.write("gpus 2", "model H100")
    engine.restart()
    engine.bindings()
    return engine


def of_dcgm(engine: DcgmEngine, store: Path, *options: str) -> Result:
    done = collected(store, "--backend", f"dcgm:host={engine.address}", "--interval", "0.1", *options)
    assert "Traceback" not in done.stderr
    return done


def gaps(store: Path) -> list[str]:
    kinds = ("source_gone", "source_back", "hung")
    return [row["kind"] for row in ask(store, f"select kind from events where kind in {kinds} order by ts")]


def stored(store: Path) -> int:
    return len(ask(store, "select gpu from telemetry"))


@pytest.mark.long
def test_collect_over_an_engine_that_restarts(two: DcgmEngine, tmp_path: Path) -> None:
    store = tmp_path / "S"

    def restart() -> None:
        until(lambda: stored(store) >= 8)
        two.stop()
        until(lambda: gaps(store) == ["source_gone"])
        before = stored(store)
        two.start()
        until(lambda: gaps(store) == ["source_gone", "source_back"])
        until(lambda: stored(store) >= before + 8)

    with meanwhile(restart):
        done = of_dcgm(two, store, *LONG)
    assert done.exit_code == 0, done.stderr
    assert gaps(store) == ["source_gone", "source_back"]
    told = ask(store, "select gpu, count(*) n, count(power_mw) p from telemetry group by gpu")
    assert len(told) == 2
    for row in told:
        assert row["p"] > row["n"] / 2 > 0  # a pause of this machine cuts a cycle in two rows
    # From the second connection too, there is a row for each cycle, and none twice.
    assert ask(store, "select count(*) n, count(distinct (gpu, ts)) d from telemetry") == [
        {"n": sum(row["n"] for row in told), "d": sum(row["n"] for row in told)}
    ]


@pytest.mark.long
def test_a_lost_gpu_an_xid_and_a_sick_gpu_are_events_and_the_rest_goes_on(
    two: DcgmEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whorl.collectors.dcgm.dcgm._HEALTH_S", 0.3)
    store = tmp_path / "S"

    def powers() -> int:
        return len(ask(store, "select gpu from telemetry where power_mw is not null"))

    def fail() -> None:
        until(lambda: powers() >= 8)
        two.nvml.add(f"from {time.time()} gpu 0 xid 48")
        until(lambda: ask(store, "select gpu from events where kind = 'xid'"))
        two.nvml.add(f"from {time.time()} gpu 1 lost")
        until(lambda: ask(store, "select gpu from events where kind = 'lost'"))
        until(lambda: ask(store, "select gpu from events where kind = 'health'"))
        before = powers()
        until(lambda: powers() >= before + 8)

    with meanwhile(fail):
        done = of_dcgm(two, store, *LONG)
    assert done.exit_code == 0, done.stderr
    (first, second) = ask(
        store,
        "select gpu, count(*) n, count(power_mw) p, count(*) filter (quality = 'lost') lost, max(ts) last "
        "from telemetry group by gpu order by gpu",
    )
    assert first["p"] > second["p"] > 0
    assert first["lost"] == 0 < second["lost"]
    assert first["p"] > first["n"] / 2  # a pause of this machine cuts a cycle in two rows
    events = ask(store, "select gpu, kind, code, value, detail from events order by ts")
    told = {event["kind"]: event for event in events}
    assert (told["xid"]["gpu"], told["xid"]["code"]) == (first["gpu"], 48)
    assert told["lost"]["gpu"] == second["gpu"]
    assert "source_gone" not in told
    sick = [event for event in events if event["kind"] == "health"]
    assert sick
    assert len({(event["gpu"], event["code"], event["value"]) for event in sick}) == len(sick)


def test_who_waits_for_a_source_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    over = threading.Event()

    class Slow(Backend):
        def devices(self) -> list[Device]:
            over.wait(30)
            return []

    monkeypatch.setattr(collect, "find_backend", lambda _: Slow)
    monkeypatch.setattr(collect, "_QUIET_S", 0.01)
    try:
        with pytest.raises(InputError, match="has not answered for 0 s; check the driver, the engine or the network"):
            collect.open_backend("dcgm", {}, patience_s=0.45)
    finally:
        over.set()
    assert [record.getMessage() for record in caplog.records] == ["dcgm has not answered for 0 s; waiting 0 s at most"]


@pytest.mark.long
def test_a_collector_ends_when_it_is_told_to_while_the_engine_hangs(stopped_engine: DcgmEngine, tmp_path: Path) -> None:
    engine, store = stopped_engine, new_store(tmp_path / "S")
    engine.nvml.write("gpus 2", "model H100")
    engine.start()
    command = [sys.executable, "-m", "whorl", "collect", "--backend", f"dcgm:host={engine.address}", "--node", "n1"]
    command += ["--interval", "0.1", "--store", str(store.root)]
    with subprocess.Popen(command, env=engine.environment(), stderr=subprocess.PIPE, text=True) as process:
        until(lambda: len(store.sql("select ts from telemetry limit 1")))
        with engine.frozen():
            time.sleep(1.2)  # it asks once a second
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    assert "SIGTERM received; stored" in said
    assert "Traceback" not in said
