"""`whorl collect` over a real exporter's server and a real pydcgm with our engine: all that goes wrong on the way."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from whorl.cli import cli
from whorl.collectors import streaming
from whorl.store import Store
from whorl.tests.exporter import Answer, Exported, exporting, page, usual
from whorl.tests.stores import new_store


def collected(store: Path, *options: str) -> Result:
    new_store(store)
    return CliRunner().invoke(cli, ["collect", "--store", str(store), "--node", "n1", *options])


def rows_of(store: Path, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = Store.open(store).sql(query).to_pylist()
    return found


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
    monkeypatch.setattr(streaming, "_OFTEN_NS", 100_000_000)
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
        options = ("--backend", "prometheus", "--url", exporter.url, "--interval", "0.1")
        done = collected(store, *options, "--duration", "1.5")
    assert done.exit_code == 0, done.stderr
    assert "Traceback" not in done.stderr
    told = rows_of(store, "select power_mw, temperature_c, energy_mj from telemetry order by energy_mj, power_mw")
    assert [row["energy_mj"] for row in told] == [
        1_000_000 + 100_000 * second for second in (0, 1, 2, 3, 5, 6, 7) for _ in range(2)
    ]
    assert [row["power_mw"] for row in told if row["energy_mj"] == 1_300_000] == [None, None]
    assert {row["temperature_c"] for row in told if row["energy_mj"] == 1_600_000} == {None}
    events = rows_of(store, "select kind, detail from events order by ts")
    kinds = [event["kind"] for event in events]
    assert (kinds.count("source_gone"), kinds.count("source_back")) == (1, 1)
    assert "500" in next(event["detail"] for event in events if event["kind"] == "source_gone")
    assert any("DCGM_FI_DEV_GPU_TEMP is not on the page any more" in event["detail"] for event in events)
    assert done.stderr.count("500") == done.stderr.count("answers again") == 1


def test_an_exporter_that_cannot_be_read_at_the_start(tmp_path: Path) -> None:
    answers = [Answer("not well", 500), Answer("<html>hello</html>"), Answer("# nothing\n"), Answer(shown(0), cut=400)]
    for answer, words in zip(answers, ("500", "GPU", "shows no GPU", "cut short"), strict=True):
        with exporting(lambda _, answer=answer: answer) as exporter:  # type: ignore[misc]
            done = collected(tmp_path / "S", "--backend", "prometheus", "--url", exporter.url)
        assert done.exit_code == 2
        assert done.stderr.count("\n") == 1
        assert words in done.stderr
        assert exporter.url in done.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_an_exporter_that_is_not_there(tmp_path: Path, host: str) -> None:
    url = f"http://{host}:{closed_port()}/metrics"
    done = collected(tmp_path / "S", "--backend", "prometheus", "--url", url)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert url in done.stderr
