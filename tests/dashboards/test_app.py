"""The dashboard as a web application: pages, token, prefix, hostile names. No browser."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from html import unescape
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import click.testing
import pytest
from werkzeug.test import TestResponse

from whorl import dashboards
from whorl.analysis.verdicts.judgements import conclude
from whorl.cli import cli
from whorl.dashboards.app.access import LIMITS, without_prefix
from whorl.dashboards.app.reading import Reading
from whorl.dashboards.app.shell import make_app
from whorl.dashboards.documents.evidence import action
from whorl.dashboards.serving import Server
from whorl.errors import WhorlError
from whorl.store import Store
from whorl.store.schema import arrow_rows
from whorl.tests.attacks import attacked
from whorl.tests.dashboards.asking import Asked
from whorl.tests.judged_fleet import BEGAN_NS, CLUSTER, judged_store
from whorl.tests.probed_fleet import stored
from whorl.tests.stores import new_store

TOKEN = "0123456789abcdef-token"
HOSTILE = "<img src=x onerror=alert(1)>"


def _show(client: Any, path: str, search: str = "", base: str = "/") -> TestResponse:
    """What a browser asks for when it opens a page."""
    request = {
        "output": "..page.children...navigation.children...problem.children..",
        "outputs": [{"id": name, "property": "children"} for name in ("page", "navigation", "problem")],
        "inputs": [{"id": "url", "property": "pathname", "value": path}],
        "state": [{"id": "url", "property": "search", "value": search}],
        "changedPropIds": ["url.pathname"],
    }
    answer = client.post(f"{base}_dash-update-component", json=request)
    assert isinstance(answer, TestResponse)
    return answer


def _text(answer: TestResponse) -> str:
    assert answer.status_code == 200, answer.text
    return json.dumps(answer.json, ensure_ascii=False)


def _got(port: int, path: str, headers: Mapping[str, str] | None = None) -> tuple[HTTPResponse, str]:
    """The answer of a server of this machine, and its text."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", path, headers=headers or {})
        answer = connection.getresponse()
        return answer, answer.read().decode()


def _slow(names: list[str]) -> dict[str, list[Any]]:
    """Rows of `verdicts` of GPUs that are slow, and of which nothing else is known."""
    n = len(names)
    members = [[{"name": name, "gpu": name}] for name in names]
    codes = {"level": ["gpu"] * n, "kind": ["slow"] * n, "state": ["confirmed"] * n, "action": ["run_full_suite"] * n}
    return {"name": names, "gpus": members, "place": list(range(n)), "figure": [""] * n, **codes}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One GPU, one run and one finding, with HTML in every name."""
    store = new_store(tmp_path_factory.mktemp("hostile") / "store")
    gpu = {"cluster": ["c"], "gpu": [HOSTILE]}
    judged = {"judgement": ["1"], "cluster": ["c"], "judged_at": [BEGAN_NS]}
    store.append(
        {
            "gpus": arrow_rows("gpus", {**gpu, "model": ["V100"]}),
            "runs": arrow_rows("runs", {"run_id": ["r"], **gpu, "campaign": [HOSTILE], "workload": [HOSTILE]}),
            "campaigns": arrow_rows("campaigns", {"cluster": ["c"], "campaign": [HOSTILE]}),
            "judgements": arrow_rows("judgements", {**judged, "gpus": [1], "findings": [1]}),
            "verdicts": arrow_rows("verdicts", {**judged, **_slow([HOSTILE])}),
        },
        "hostile",
    )
    return store


@pytest.fixture
def client(hostile: Store) -> Any:
    return make_app(Reading(hostile)).server.test_client()


def test_the_first_page_shows_the_findings_with_what_is_not_known_as_n_a(client: Any) -> None:
    text = _text(_show(client, "/"))
    assert "1 of 1 GPU stands out." in text
    assert text.count('"n/a"') == 4, "the effect, the times of the campaign and of the newest run"
    assert "n/a %" not in text


def test_names_with_html_in_them_stay_text(client: Any) -> None:
    answer = _show(client, "/", f"?gpu={HOSTILE}")
    assert HOSTILE in _text(answer)
    assert answer.content_type == "application/json"
    assert "dangerously" not in _text(answer)
    assert HOSTILE not in client.get("/").text
    links = re.findall(r'"href": "([^"]*)"', _text(answer))
    assert links
    assert not any("<" in link or link.startswith("javascript:") for link in links)


def test_an_address_that_says_nothing_gives_the_page_and_a_sentence(client: Any) -> None:
    assert "is no time" in _text(_show(client, "/", "?since=%FF%00%"))
    assert "Choose a page above" in _text(_show(client, "/nowhere"))


def test_a_question_that_no_page_asks_is_refused_without_a_word(
    hostile: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """As from a program that has the cookie."""
    client = make_app(Reading(hostile), token=TOKEN).server.test_client()
    client.get("/", query_string={"token": TOKEN})
    page = {"id": "page", "property": "children"}
    usual: dict[str, Any] = {
        "output": "overview-answers.children",
        "outputs": {"id": "overview-answers", "property": "children"},
        "inputs": [{"id": "url", "property": "search", "value": ""}],
        "state": [{"id": "url", "property": "pathname", "value": "/"}],
        "changedPropIds": ["url.search"],
    }
    assert client.post("/_dash-update-component", json=usual).status_code == 200
    strange: list[Any] = [{}, [], "output", None, {"output": 1}, {"output": []}, {"output": "nothing.children"}]
    wrong: dict[str, tuple[Any, ...]] = {
        "outputs": (1, None, [], [page], "page", {"id": 1, "property": "children"}),
        "inputs": (1, None, [], [1], [page], [usual["inputs"]], usual["inputs"] * 2),
        "state": (1, None, [], [None], [page], [[]]),
        "changedPropIds": (1, [1], [[]]),
    }
    strange += [usual | {key: value} for key, values in wrong.items() for value in values]
    strange += [
        {name: usual[name] for name in usual if name != key} for key in ("output", "outputs", "inputs", "state")
    ]
    for text in (*map(json.dumps, strange), "", "[" * 100_000, '{"output":' * 100_000, "{", "\xff"):
        answer = client.post("/_dash-update-component", data=text, content_type="application/json")
        assert answer.status_code in (200, 204, 400), text[:300]
        assert "Traceback" not in answer.text
    assert not any(record.exc_info for record in caplog.records)


def test_an_empty_store_says_which_command_fills_it(store: Store) -> None:
    client = make_app(Reading(store)).server.test_client()
    text = _text(_show(client, "/"))
    assert f"whorl probe run --store {store.root}" in text
    assert "nothing to show yet: runs has no rows" in text
    store.append({"runs": arrow_rows("runs", {"run_id": ["r"], "cluster": ["c"], "gpu": ["x"]})}, "a")
    assert "runs has no rows" not in _text(_show(client, "/"))


@pytest.mark.long
def test_a_store_that_went_away_is_told_and_not_taken_for_an_empty_one(store: Store) -> None:
    store.append({"runs": arrow_rows("runs", {"run_id": ["r"], "cluster": ["c"], "gpu": ["x"]})}, "a")
    client = make_app(Reading(store)).server.test_client()
    assert "Nobody has judged" in _text(_show(client, "/"))
    away = store.root.rename(store.root.parent / "away")
    text = _text(_show(client, "/"))
    assert f"The store {store.root} is not there any more." in text
    assert "Nobody has judged" not in text
    new_store(store.root)
    assert "This page needs the table runs" in _text(_show(client, "/")), "what another store had does not count"
    store.root.rename(store.root.parent / "other")
    away.rename(store.root)
    assert "Nobody has judged" in _text(_show(client, "/"))


def test_a_page_without_rows_leads_to_those_that_have_some(store: Store) -> None:
    client = make_app(Reading(store)).server.test_client()
    assert "have something to show now" not in _text(_show(client, "/"))
    rows = {"ts": [0], "cluster": ["c"], "gpu": ["x"], "power_mw": [1]}
    store.append({"telemetry": arrow_rows("telemetry", rows)}, "t")
    text = _text(_show(client, "/")).partition("have something to show now")[2]
    assert '"href": "telemetry"' in text
    assert '"href": "fleet"' not in text.partition('"navigation"')[0]


@pytest.mark.long
def test_the_page_gpu_says_that_nobody_judged_and_leads_only_to_pages_that_show_something(tmp_path: Path) -> None:
    measured = judged_store(tmp_path / "S", 8, (0,))
    text = Asked(measured).said("gpu")
    assert "Nobody has judged these GPUs yet" in text
    assert f"whorl verdicts --store {measured.root}" in text
    assert "No GPU has findings" not in text
    text = Asked(measured).said("gpu?gpu=n01/1")
    assert "The fleet, with this GPU marked" in text
    assert "Its telemetry" not in text
    assert "Its jobs and energy" not in text


def test_pages_and_what_they_load_name_no_other_host(client: Any) -> None:
    page = client.get("/")
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', page.text)
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]


def test_without_a_token_only_requests_to_this_machine_are_answered(client: Any) -> None:
    for host in ("127.0.0.1:8050", "localhost", "[::1]:8050", "192.0.2.1"):
        assert client.get("/", headers={"Host": host}).status_code == 200, host
    for host in ("evil.example", "evil.example:8050", "127.0.0.1.evil.example", "[x", ""):
        assert client.get("/_dash-layout", headers={"Host": host}).status_code in (400, 403), host


def test_with_a_token_nothing_is_answered_without_it(hostile: Store) -> None:
    client: Any = make_app(Reading(hostile), token=TOKEN).server.test_client()
    suite = "/_dash-component-suites/dash/deps/react@18.js"
    for path in ("/", "/_dash-layout", "/_dash-dependencies", "/assets/style.css", suite, "/?token=wrong", "/?token=é"):
        answer = client.get(path)
        assert answer.status_code == 401, path
        assert "Set-Cookie" not in answer.headers
        assert TOKEN not in answer.text
    assert _show(client, "/").status_code == 401


@pytest.mark.parametrize("prefix", ["/", "/node/7/"])
def test_the_token_is_asked_once_and_leaves_the_address(hostile: Store, prefix: str) -> None:
    client: Any = make_app(Reading(hostile), token=TOKEN, prefix=prefix).server.test_client()
    answer = client.get(f"/gpu?cluster=a%26b&token={TOKEN}", headers={"Host": "fleet.example"})
    assert answer.status_code == 303
    assert answer.headers["Location"] == f"{prefix}gpu?cluster=a%26b"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    assert f"Path={prefix}" in cookie
    assert TOKEN not in cookie
    name, _, value = cookie.partition(";")[0].partition("=")
    client.set_cookie(name, value, path="/")
    assert client.get("/").status_code == 200
    assert client.get(f"/?token={TOKEN}").status_code == 303
    client.set_cookie(name, "0" * len(value), path="/")
    assert client.get("/").status_code == 401


def test_the_token_can_be_typed(hostile: Store) -> None:
    client: Any = make_app(Reading(hostile), token=TOKEN).server.test_client()
    assert client.post("/", data={"token": "wrong"}).status_code == 401
    assert client.post("/", data={"token": f" {TOKEN} "}).headers["Location"] == "/"
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("prefix", ["/", "/node/7/"])
def test_what_draws_tables_is_loaded_before_a_table_asks_for_it(store: Store, prefix: str) -> None:
    client: Any = make_app(Reading(store), prefix=prefix).server.test_client()
    (address,) = re.findall(r'<link rel="prefetch" as="script" href="([^"]*)"', client.get("/").text)
    assert address.startswith(prefix)
    answer = client.get(address.removeprefix(prefix[:-1]))
    assert (answer.status_code, len(answer.data) > 100_000) == (200, True)


def test_nothing_for_old_browsers_is_loaded_and_no_part_of_dash_needs_more_than_the_page_has(store: Store) -> None:
    client: Any = make_app(Reading(store)).server.test_client()
    page = client.get("/").text
    assert "polyfill" not in page
    addresses = re.findall(r'<script src="([^"]*_dash-component-suites[^"]*)"', page)
    assert len(addresses) > 8
    scripts = ""
    for address in addresses:
        with client.get(address) as answer:
            scripts += answer.text
    used = "".join(re.findall(r"regeneratorRuntime[^}]*}", scripts))
    assert set(re.findall(r"\.(\w+)", used)) == {"mark", "wrap", "prev", "next", "stop", "isReady"}


def test_who_types_the_token_gets_the_page_that_was_asked_for(hostile: Store) -> None:
    client: Any = make_app(Reading(hostile), token=TOKEN, prefix="/node/7/").server.test_client()
    request = "fleet?probe=a%26b&gpu=%22%3E%3Cb%3E"
    for answer in (client.get(f"/{request}"), client.post(f"/{request}", data={"token": "wrong"})):
        (action,) = re.findall(r'action="([^"]*)"', answer.text)
        assert unescape(action) == f"/node/7/{request}"
        assert "<b>" not in answer.text
    answer = client.post(f"/{request}", data={"token": TOKEN})
    assert answer.headers["Location"] == f"/node/7/{request}"
    client = make_app(Reading(hostile), token=TOKEN).server.test_client()
    away = client.post("/%2Fevil.example", data={"token": TOKEN}).headers["Location"]
    assert away == "/evil.example", "and no other host"


@pytest.fixture
def served(hostile: Store) -> Iterator[Server]:
    prefix = "/node/7/"
    server = Server(make_app(Reading(hostile), prefix=prefix).server, "127.0.0.1", 0, LIMITS, path=prefix)
    server.start()
    yield server
    server.close()


def test_a_proxy_may_keep_the_prefix_or_remove_it(served: Server) -> None:
    assert served.url == f"http://127.0.0.1:{served.port}/node/7/"
    for path in ("/node/7/", "/node/7", "/", "/node/7/_dash-layout", "/_dash-layout", "/node/7/assets/style.css"):
        answer, text = _got(served.port, path)
        assert answer.status == 200, path
        assert 'src="/_dash' not in text, path


def test_behind_https_the_cookie_is_for_https_and_a_huge_request_is_refused(hostile: Store) -> None:
    server = Server(make_app(Reading(hostile), token=TOKEN).server, "127.0.0.1", 0, LIMITS)
    server.start()
    for proto, secure in (("https", True), ("http", False)):
        answer, _ = _got(server.port, f"/?token={TOKEN}", {"X-Forwarded-Proto": proto})
        assert ("Secure" in (answer.getheader("Set-Cookie") or "")) == secure
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.putrequest("POST", "/_dash-update-component")
    connection.putheader("Content-Length", str(1 << 30))
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    server.close()


def test_many_clients_that_do_not_end_their_requests_stop_no_other(hostile: Store) -> None:
    limits = replace(LIMITS, connections=64)
    server = Server(make_app(Reading(hostile), token=TOKEN).server, "127.0.0.1", 0, limits)
    with attacked(server, clients=120) as ask:
        for _ in range(3):
            assert ask("/").startswith(b"HTTP/1.1 401")


def test_a_longer_path_is_no_prefix() -> None:
    paths: list[str] = []

    def application(environ: dict[str, Any], _: object) -> list[bytes]:
        paths.append(environ["PATH_INFO"])
        return []

    answer = without_prefix(application, "/node/7/")
    for path in ("/node/77/x", "/node/7/x", "/node/7"):
        answer({"PATH_INFO": path}, lambda *_: None)
    assert paths == ["/node/77/x", "/x", "/"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--listen", "0.0.0.0:0", "--token-file", "none"], "leave out --token-file none"),
        (["--listen", ":0", "--token-file", "none"], "leave out --token-file none"),
        (["--listen", "8050"], "write HOST:PORT, as 127.0.0.1:8050"),
        (["--set", "prefix=/a b/"], "is no path"),
        (["--token-file", "absent"], "cannot be read"),
        (["--token-file", "open"], "chmod 600"),
        (["--token-file", "short"], "16 characters"),
    ],
)
def test_what_would_not_be_safe_is_refused_in_a_sentence(
    options: list[str], says: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, mode, text in (("open", 0o644, TOKEN), ("short", 0o600, "abc")):
        Path(name).write_text(text)
        Path(name).chmod(mode)
    done = click.testing.CliRunner().invoke(cli, ["dashboard", "--store", str(store.root), *options])
    assert done.exit_code == 2
    assert says in done.output
    assert "Traceback" not in done.output


@pytest.mark.long
def test_who_has_not_the_printed_address_reads_nothing_until_a_signal_ends_it(hostile: Store) -> None:
    command = [
        sys.executable,
        "-m",
        "whorl",
        "dashboard",
        "--store",
        str(hostile.root),
        "--listen",
        "127.0.0.1:0",
        "--set",
        "browser=no",
    ]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            first = running.stderr.readline()
            ((port, token),) = re.findall(r"http://127\.0\.0\.1:(\d+)/\?token=(\w{32})\b", first)
            assert _got(int(port), "/_dash-layout")[0].status == 401
            answer, _ = _got(int(port), f"/?token={token}")
            cookie = {"Cookie": str(answer.getheader("Set-Cookie")).partition(";")[0]}
            assert (answer.status, _got(int(port), "/_dash-layout", cookie)[0].status) == (303, 200)
            done = click.testing.CliRunner().invoke(
                cli, ["dashboard", "--store", str(hostile.root), "--listen", f"127.0.0.1:{port}"]
            )
            assert done.exit_code == 2
            assert "another program listens there" in done.output
            running.send_signal(signal.SIGTERM)
            assert running.stderr.read() == ""
            assert running.wait(60) == 0
        finally:
            running.kill()


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("options", "says", "opens"),
    [
        ([], "?token=", "?token="),
        (["--token-file", "token"], "/ (end", f"?token={TOKEN}"),
        (["--token-file", "none"], "/ (end", "/"),
    ],
)
def test_a_browser_opens_a_file_of_its_user_that_leads_to_the_pages(
    options: list[str], says: str, opens: str, hostile: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address of the pages holds the token, and everybody can read a command line."""
    monkeypatch.chdir(tmp_path)
    Path("token").write_text(TOKEN)
    Path("token").chmod(0o600)
    opened: list[str] = []

    def open_page(address: str) -> None:
        page = Path(unquote(urlsplit(address).path))
        assert page.stat().st_mode & 0o077 == 0
        opened.append(page.read_text())
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("webbrowser.open", open_page)
    monkeypatch.setattr("whorl.cli.dashboard._has_browser", lambda: True)
    done = click.testing.CliRunner().invoke(
        cli, ["dashboard", "--store", str(hostile.root), "--listen", "127.0.0.1:0", *options]
    )
    assert done.exit_code == 0, done.output
    assert says in done.output
    assert opens in opened[0]
    assert (TOKEN in done.output) is False


def test_a_file_that_is_not_of_the_pages_is_not_found(client: Any) -> None:
    for path in ("..%2f..", "dash/..%2f..%2fetc%2fpasswd", "whorl/py.typed"):
        assert client.get(f"/_dash-component-suites/{path}").status_code == 404, path


@pytest.mark.long
def test_the_demo_is_measured_judged_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet that costs little stands in for the demo's, which tests/cli/test_demo.py measures."""
    text: list[Store] = []

    def measure(folder: Path, *_: Any) -> Any:
        return SimpleNamespace(store=judged_store(folder / "S", 8, (0,)))

    def make(reading: Reading, **options: Any) -> Any:
        text.append(reading.store)
        assert reading.store.sql("SELECT count(*) AS n FROM judgements").to_pydict() == {"n": [1]}
        return make_app(reading, **options)

    monkeypatch.setattr("whorl.cli.answers.demo.measure_demo", measure)
    monkeypatch.setattr("whorl.dashboards.app.shell.make_app", make)
    monkeypatch.setattr(Server, "start", lambda _: signal.raise_signal(signal.SIGTERM))
    done = click.testing.CliRunner().invoke(
        cli, ["dashboard", "--demo", "--set", "browser=no", "--listen", "127.0.0.1:0"]
    )
    assert done.exit_code == 0, done.output
    assert "/?token=" in done.output
    assert not text[0].root.exists(), "it is removed at the end"


_READS_ON = """
import threading
from whorl import cli
from whorl.dashboards.app.reading import Slowly, ahead

def read(say=None):
    import time
    begun.set()
    time.sleep(600)

for begin in (lambda: ahead([read]), lambda: Slowly().ask("slow", read, 1)):
    begun = threading.Event()
    begin()
    begun.wait(30)
threading._shutdown = lambda: print("Python ends the thread itself")
cli.main()
"""


@pytest.mark.long
def test_a_command_ends_at_once_where_threads_still_read_for_pages() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _READS_ON, "--version"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("whorl, version")
    assert "Python ends the thread itself" not in done.stdout


def test_a_missing_package_is_told_with_the_extra_that_has_it(hostile: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = "whorl.dashboards.app"
    monkeypatch.setattr(dashboards, "app", sys.modules[pages])  # modules that are loaded anew are forgotten at the end
    for name in [name for name in sys.modules if name == pages or name.startswith(f"{pages}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dash_ag_grid", None)
    done = click.testing.CliRunner().invoke(cli, ["dashboard", "--store", str(hostile.root)])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "pip install 'whorl[dashboard]'" in done.stderr


def test_the_first_page_says_what_to_do_which_gpus_a_batch_has_and_that_the_others_are_fine(tmp_path: Path) -> None:
    store = judged_store(tmp_path / "S", 48, time=lambda gpu, day: 0.96 if gpu % 4 == 0 else 1.0, spread=0.001)
    [judgement] = conclude(store).judgements
    assert [row.name for row in judgement.rows] == ["12 GPUs"]
    text = Asked(store).said("")
    assert action(judgement.rows[0]) in text
    assert all(f"gpu?cluster={CLUSTER}&gpu={quote(name, safe='')}" in text for name in judgement.rows[0].gpus)
    assert "No GPU is slow or faulty. All 48 GPUs are fine." in text
    assert text.count("model of the GPUs") == 1


@pytest.mark.long
def test_of_several_clusters_the_odd_one_is_shown_the_others_are_links_and_new_ones_are_to_be_judged(
    tmp_path: Path,
) -> None:
    store = judged_store(tmp_path / "S", 16, (0, 2), slow={5: 0.12})
    conclude(store)
    text = Asked(store).said("")
    assert "1 of 16 GPUs stands out. The other 15 are fine." in text
    assert "sort and" not in text, "there is one finding"
    assert "Nobody has judged" not in text
    judged = {"judgement": ["2"], "cluster": ["other"], "judged_at": [BEGAN_NS], "gpus": [1], "findings": [0]}
    store.append({"judgements": arrow_rows("judgements", judged)}, "other")
    text = Asked(store).said("")
    assert "Other clusters (1)" in text
    assert '"./?cluster=other"' in text
    run = {"run_id": ["r"], "cluster": ["it's new"], "gpu": ["x"]}
    store.append({"runs": arrow_rows("runs", run)}, "new")
    text = Asked(store).said("")
    assert "Nobody has judged the GPUs of it's new yet" in text
    assert f"""whorl verdicts --store {store.root} --cluster 'it'\\"'\\"'s new'""" in text


@pytest.mark.long
def test_of_many_findings_the_worst_are_shown_and_a_link_to_all(tmp_path: Path) -> None:
    store = new_store(tmp_path / "S")
    names = [f"a{place:02}" for place in range(25)]
    judged = {"judgement": ["1"], "cluster": ["a"], "judged_at": [BEGAN_NS], "gpus": [30], "findings": [25]}
    verdicts = {"judgement": ["1"] * 25, "cluster": ["a"] * 25} | _slow(names)
    run = {"run_id": ["1"], "cluster": ["a"], "gpu": ["x"]}
    tables = {"judgements": judged, "verdicts": verdicts, "runs": run}
    store.append({name: arrow_rows(name, rows) for name, rows in tables.items()}, "a")
    text = Asked(store).said("")
    assert list(dict.fromkeys(re.findall(r'"href": "gpu\?cluster=a&gpu=(a..)', text))) == names[:5]
    assert "and 20 more findings" in text
    assert '"./?cluster=a&findings=all"' in text
    gpus = Asked(store).said("?findings=all")
    assert all(name in gpus for name in names)


@pytest.mark.long
def test_where_no_gpu_could_be_judged_no_page_says_that_nothing_was_found(tmp_path: Path) -> None:
    """Of many GPUs, too: here what differs belongs to the runs."""
    store = judged_store(tmp_path / "S", 16, (0, 0.1, 0.2), spread=0, workloads=["gemm-fp32"])
    [judgement] = conclude(store).judgements
    assert (judgement.gpus, judgement.rows) == (0, ())
    request = Asked(store)
    first = request.said("")
    assert "None of 16 GPUs could be judged." in first
    assert "What could not be judged" in first
    assert "No GPU of its cluster could be judged: nothing can be said of it." in request.said("gpu?gpu=n01/1")
    printed = click.testing.CliRunner().invoke(cli, ["explain", "n01/1", "--store", str(store.root)]).stdout
    assert "No GPU of its cluster could be judged: nothing can be said of it." in printed


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """The pages of eight GPUs with telemetry."""
    return Asked(stored(tmp_path_factory.mktemp("measured") / "S", 8)[0])


@pytest.mark.long(short=1)
@pytest.mark.parametrize(
    ("search", "says"),
    [
        ("gpu=nobody", ["has no GPU nobody: choose"]),
        ("gpu=c001-1/0&since=2020-01-01&until=2020-01-02", ["first one is of 2026-01-05 00:00:00"]),
        (
            "gpu=c001-1/0&gpu=nobody&metric=%3Cimg%3E&live=ages&since=1990-01-01&until=2100-01-01",
            ["nobody is not in this store", "no metric '<img>'", "live='ages' is none of", "only that is shown"],
        ),
    ],
)
def test_what_telemetry_cannot_be_shown_is_told(search: str, says: list[str], measured: Asked) -> None:
    sentence = measured.said(f"telemetry?{search}")
    assert [fragment for fragment in says if fragment not in sentence] == []


@pytest.mark.long
def test_what_moves_on_with_the_newest_readings_has_no_fixed_range_in_its_fields(measured: Asked) -> None:
    assert '"telemetry-from": {"value": "2026-01-0' in measured.said("telemetry?gpu=c001-1/0")
    live = measured.said("telemetry?gpu=c001-1/0&live=5m")
    assert '"telemetry-from": {"value": ""}, "telemetry-to": {"value": ""}' in live
    remaining = {"telemetry-live.value": "5m", "url.search": "?live=5m"}
    answers = measured.changed(remaining | {"telemetry-from.n_blur": 1}, "telemetry-from.n_blur")
    assert "search" not in json.dumps(answers), "to leave a field does not end it"


@pytest.mark.long
def test_of_one_gpu_no_page_speaks_of_how_far_90_percent_of_them_are_apart(tmp_path: Path) -> None:
    states = Asked(judged_store(tmp_path / "S", 1, workloads=["gemm-fp32"]))
    fleet = states.said("fleet?probe=gemm-fp32")
    assert "Time: the only GPU has " in fleet
    assert "90 % of the GPUs are" not in fleet
    assert "runs of one probe or workload" in states.said("")


@pytest.mark.long
def test_of_runs_without_a_date_no_page_says_that_they_are_of_one_day_or_one_run(store: Store) -> None:
    n = range(24)
    columns = {"cluster": ["c"] * 24, "gpu": [f"g{row % 8}" for row in n]}
    runs = columns | {"run_id": [f"r{row}" for row in n], "workload": ["w"] * 24}
    times = {"repeat": [0] * 24, "figure": ["time"] * 24, "unit": ["ms"] * 24, "value": [10 + row / 99 for row in n]}
    tables: dict[str, dict[str, Any]] = {
        "gpus": columns,
        "runs": runs | {"status": ["ok"] * 24},
        "results": runs | times,
    }
    store.append({name: arrow_rows(name, rows) for name, rows in tables.items()}, "imported")
    conclude(store)
    text = Asked(store).said("gpu?gpu=g1")
    assert "its runs have no date: its past cannot be shown" in text
    assert "Its runs have no date, so that nobody knows which are of one sitting" in text
    assert "one day only" not in text
    assert "ran once" not in text


def _table(text: str, name: str) -> dict[str, Any]:
    """What a table of a page was given."""

    def within(part: Any) -> Iterator[dict[str, Any]]:
        if isinstance(part, dict):
            if part.get("id") == name:
                yield part
            part = list(part.values())
        for inner in part if isinstance(part, list) else ():
            yield from within(inner)

    return next(within(json.loads(text)))


# -- a page that asks by itself ----------------------------------------------------------------------------------------


_INTERVALS = {"energy-poll", "gpu-again", "overview-again", "placement-poll", "telemetry-tick"}


def _disabled(name: str, answer: Any) -> bool | None:
    """Whether the answer stops the interval or starts it; None where it leaves it as it is."""
    states = {**answer["response"].get(name, {}), **answer.get("sideUpdate", {}).get(name, {})}
    return states.get("disabled")


@pytest.mark.parametrize(
    ("error", "says"), [(OSError("/gone"), "This did not work (OSError)."), (WhorlError("No such store."), "No such")]
)
def test_after_a_failure_no_page_asks_again_by_itself(
    error: Exception, says: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    calls = Asked(store)
    for name in ("answer", "kept", "version"):
        monkeypatch.setattr(Reading, name, fail)
    monkeypatch.setattr("whorl.dashboards.app.overview.fleet_now", fail)
    monkeypatch.setattr("whorl.dashboards.app.gpu.newest_reading", fail)
    answers = list(calls.by_itself({"url.search": "?gpu=x"}))
    assert {name for name, _ in answers} == _INTERVALS
    for name, answer in answers:
        assert says in json.dumps(answer), name
        assert _disabled(name, answer) is True, name
