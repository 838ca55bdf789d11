"""The page Jobs and energy without a browser: its figures are those of the commands, and it waits for slow answers."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from whorl.analysis.energy.options import Ground, ground
from whorl.analysis.energy.quote import job_offline
from whorl.cli import cli
from whorl.dashboards.app import energy as page
from whorl.dashboards.app import reading
from whorl.dashboards.app.reading import Reading
from whorl.dashboards.app.shell import make_app
from whorl.store import Store
from whorl.tests.analysis.energy.stored import gpu, job, readings, store_of
from whorl.tests.dashboards.asking import Asked

HOSTILE = "<img src=x onerror=alert(1)>"
_OUTPUTS = (
    ("energy-body", "children"), ("energy-made", "children"), ("energy-doing", "children"), ("energy-again", "hidden"),
    ("energy-poll", "disabled"), ("energy-drawn", "data"),
)  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Two GPUs for an hour; three jobs, of which one runs, one ended before it began, and one names no GPU."""
    seconds = [10.0 * number for number in range(360)]
    watts = [250.0 if 600 <= number < 2400 else 50.0 for number in seconds]
    jobs = [
        job(1, "a", 600, 2400, user=HOSTILE, account=HOSTILE), job("run", "b", 600, None), job("back", "a", 500, 400),
        job("nowhere", None, 600, 700), job("unread", "z", 600, 700, node="n2"),
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("energy-page") / "s"
    return store_of(path, [gpu("a"), gpu("b")], [readings(number, seconds, watts) for number in "ab"], jobs)


@pytest.fixture(scope="module")
def client(store: Store) -> Any:
    return make_app(Reading(store)).server.test_client()


def _asked(client: Any, search: str, by: str = "url.search", text: Any = None) -> dict[str, Any]:
    """What the page follows an address with."""
    names = "...".join(f"{name}.{subject}" for name, subject in _OUTPUTS)
    request = {
        "output": f"..{names}..",
        "outputs": [{"id": name, "property": subject} for name, subject in _OUTPUTS],
        "inputs": [
            {"id": "url", "property": "search", "value": search},
            {"id": "energy-poll", "property": "n_intervals", "value": 1},
            {"id": "energy-again", "property": "n_clicks", "value": 0},
        ],
        "state": [
            {"id": "energy-drawn", "property": "data", "value": text},
            {"id": "url", "property": "pathname", "value": "/energy"},
        ],
        "changedPropIds": [by],
    }
    answer = client.post("/_dash-update-component", json=request)
    assert answer.status_code == 200, answer.text
    return dict(answer.json["response"])


def _done(client: Any, search: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while not (answers := _asked(client, search))["energy-poll"]["disabled"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return answers


def _words(answers: dict[str, Any]) -> str:
    return json.dumps(answers["energy-body"]["children"], ensure_ascii=False)


def _drawn(part: Any) -> str:
    """The texts of a part of a page, each between > and <."""
    if isinstance(part, dict):
        return _drawn(part.get("props", {}).get("children"))
    return "".join(map(_drawn, part)) if isinstance(part, list) else f">{part}<"


def _figures(tree: Any) -> list[Any]:
    """The Plotly figures in an answer."""
    if isinstance(tree, dict):
        figures = [tree["figure"]] if isinstance(tree.get("figure"), dict) and "data" in tree["figure"] else []
        return figures + [inner for part in tree.values() for inner in _figures(part)]
    return [inner for part in tree for inner in _figures(part)] if isinstance(tree, list) else []


def _printed(store: Store, *arguments: str) -> str:
    done = CliRunner().invoke(cli, ["energy", *arguments, "--store", str(store.root)], catch_exceptions=False)
    return str(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "says"),
    [
        ("run", "It is still running"),
        ("back", "it ends before it begins"),
        ("nowhere", "nobody knows which GPUs it had"),
        ("unread", "there is no reading of this GPU in this time"),
        ("none", "knows no job none"),
    ],
)
def test_what_is_strange_about_a_job_is_told(number: str, says: str, client: Any) -> None:
    assert says in _words(_done(client, f"?job={number}"))


@pytest.mark.long
def test_books_of_which_nothing_is_known_are_na_and_never_0(tmp_path: Path) -> None:
    stuck = readings("a", range(60), [200.0] * 60, quality=["power_stuck"] * 60)
    made_store = store_of(tmp_path / "stuck", [gpu("a")], [stuck], [])
    text = _words(_done(make_app(Reading(made_store)).server.test_client(), ""))
    assert "n/a: the energy of no GPU is known" in text
    assert "The books balance" not in text
    assert '"0 J"' not in text
    assert "0 J metered" not in text
    assert "n/a: the energy of no GPU is known" in _printed(made_store, "reconcile")


def test_from_a_job_that_is_not_there_a_link_leads_back(client: Any, store: Store) -> None:
    assert "knows no job none" in _words(_done(client, "?job=none&by=user"))
    text = Asked(store).said("energy?job=none&by=user").partition('"energy-back"')[2]
    assert '"href": "energy?by=user"' in text


@pytest.mark.long
def test_a_job_without_energy_is_na_and_never_0(client: Any, store: Store) -> None:
    assert job_offline(store, "unread").answer.total["energy_j"] is None
    tiles = _done(client, "?job=unread")["energy-body"]["children"]
    assert ">n/a<" in _drawn(tiles)
    assert not re.search(r">0(\.0*)? [kM]?J<", _drawn(tiles))
    assert "Infinity" not in _words(_done(client, "?by=job"))
    assert "no telemetry" in _words(_done(client, "?by=job"))


@pytest.mark.long
def test_names_of_people_stay_text(client: Any) -> None:
    for by in ("user", "account", "job"):
        text = _words(_done(client, f"?by={by}"))
        assert "dangerously" not in text
        assert "Markdown" not in text
    by_user = [_figure for _figure in _figures(_done(client, "?by=user")) if "yaxis" in _figure["layout"]]
    drawn = json.dumps([(_figure["layout"]["yaxis"], _figure["data"]) for _figure in by_user])
    assert "&lt;img" in drawn, "Plotly shows it as text"
    assert "<img" not in drawn


@pytest.mark.long(short=2)
@pytest.mark.parametrize(
    ("search", "says"),
    [
        ("?by=<b>", "by='<b>' in the address is none of"),
        ("?last=0", "last='0' in the address is none of"),
        ("?since=soon&until=&by=node", "Energy by node"),
        ("?job=1%27%20or%201=1", "knows no job 1' or 1=1"),
        ("?cluster=%00", "has no telemetry of cluster"),
        ("?since=2026-11-03T00:00&until=2026-11-02T00:00", "drawn by 2 GPUs"),
        ("?since=1970-01-01T00:00&until=1970-01-02T00:00", "no telemetry in this time"),
    ],
)
def test_what_an_address_says_wrongly_is_told_in_a_sentence(search: str, says: str, client: Any) -> None:
    assert says in _words(_done(client, search)).replace("\u00a0", " ")


@pytest.mark.long
def test_without_telemetry_jobs_or_a_cluster_there_is_a_sentence(client: Any, tmp_path: Path) -> None:
    assert "has no telemetry of cluster nowhere" in _words(_done(client, "?cluster=nowhere"))
    alone = store_of(tmp_path / "a", [gpu("a")], [readings("a", range(99), [200.0] * 99)], [])
    assert "No job is known in this time" in _words(_done(make_app(Reading(alone)).server.test_client(), ""))
    unread = store_of(tmp_path / "b", [gpu("a")], [], [job(1, "a", 600, 2400)])
    text = _words(_done(make_app(Reading(unread)).server.test_client(), ""))
    assert "has no telemetry" in text
    assert "whorl collect" in text


@pytest.mark.long
def test_a_cluster_of_a_bookmark_that_no_list_has_stays_in_the_address_and_is_told(client: Any, store: Store) -> None:
    """A list that lacks it has no value, which is not what a person chose: all clusters."""
    result = _done(client, "?cluster=gone")
    assert "no telemetry of cluster gone" in _words(result)
    assert '"energy-cluster": {"value": null}' in Asked(store).said("energy?cluster=gone")
    answers = Asked(store).changed(
        {"energy-cluster.value": None, "url.search": "?cluster=gone", "energy-by.value": "user"}, "energy-cluster.value"
    )
    assert "search" not in json.dumps(answers)


@pytest.mark.long
def test_what_all_jobs_share_is_read_once_and_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    readings_made = []

    def counted(*request: Any) -> Ground:
        readings_made.append(request)
        return ground(*request)

    monkeypatch.setattr(page, "ground", counted)
    client: Any = make_app(Reading(store)).server.test_client()
    text = [_words(_done(client, f"?job={number}")) for number in ("1", "run")]
    assert len(readings_made) == 1
    again = make_app(Reading(store)).server.test_client()
    assert _words(_done(again, "?job=run")) == text[1]
    answers = ground(store, "c")
    together, alone = job_offline(store, "1", grounds=lambda *_: answers), job_offline(store, "1")
    assert together.gpus.equals(alone.gpus)
    assert together.elsewhere is not None
    assert alone.elsewhere is not None
    assert [quote.choice for quote in together.elsewhere.quotes] == [quote.choice for quote in alone.elsewhere.quotes]


@pytest.mark.long
def test_a_slow_answer_is_waited_for_and_stays_until_it_is_loaded_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_WAIT_S", 0.0)
    client: Any = make_app(Reading(store)).server.test_client()
    first = _asked(client, "?by=gpu")
    assert first["energy-poll"]["disabled"] is False
    assert "Adding up" in _words(first)
    done = _done(client, "?by=gpu")
    assert done["energy-again"]["hidden"] is False
    again = _asked(client, "?by=gpu", "energy-poll.n_intervals", done["energy-drawn"]["data"])
    assert "energy-body" not in again, "what is on the page is not sent again"
    assert _asked(client, "?by=job")["energy-made"] == done["energy-made"], "another grouping needs no new reading"
    reloaded = _asked(client, "?by=gpu", "energy-again.n_clicks", done["energy-drawn"]["data"])
    assert reloaded["energy-poll"]["disabled"] is False
    assert "energy-body" not in reloaded, "the old one is shown meanwhile"
