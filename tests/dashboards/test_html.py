"""The offline page: one file, safe text, figures that a real browser draws, light and dark."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from plotly.utils import PlotlyJSONEncoder

from whorl.dashboards.app.page import components
from whorl.dashboards.document import Chart, Column, Document, Facts, Listing, Part, Section, Table, Tiles
from whorl.dashboards.html import page
from whorl.dashboards.words import interval, minus, percent
from whorl.tests.dashboards.browser import CHROMIUM, needs_browser, rendered

NASTY = '<script>document.title = "gone"</script> & "quoted" {braces}'


def figure(y: float = 2.0, height: int = 300) -> Any:
    return go.Figure([go.Bar(x=["a", "b"], y=[1.0, y], name=NASTY)], {"height": height, "template": "none"})


def made(*parts: Part) -> str:
    return page(Document("Title", ["What matters.", Section("Part", parts, "Says.")], ["A note."]))


def unpacked(text: str, name: str) -> str:
    match = re.search(rf'id="{name}">([^<]*)<', text)
    assert match is not None
    return gzip.decompress(base64.b64decode(match[1])).decode() if match[1] else ""


def test_a_page_without_figures_carries_no_bundle() -> None:
    text = made(Table(["a", Column("b", "count")], [["1", 2]]), Facts([("seeds", "3")]))
    assert len(text) < 20_000
    assert unpacked(text, "bundle") == ""
    for part in (
        "<h1>Title</h1>",
        "What matters.",
        '<td class="r">2</td>',
        '<div class="wide" role="region" aria-label="a, b" tabindex="0">',
        "<dt>seeds</dt><dd>3</dd>",
        "<li>A note.</li>",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-0.45 kWh", "−0.45 kWh"),
        ("lost [-1.2, -.5]; 3 GPUs", "lost [−1.2, −.5]; 3 GPUs"),
        ("a\u00a0(-2 to -1)<br>-3", "a\u00a0(−2 to −1)<br>−3"),
        ("n-1 on 2026-11-23, 1e-05, 5-10 %, --last -a", "n-1 on 2026-11-23, 1e-05, 5-10 %, --last -a"),
    ],
)
def test_a_negative_number_has_a_minus_sign_and_a_name_its_hyphen(text: str, expected: str) -> None:
    assert minus(text) == minus(expected) == expected


def test_every_part_of_a_page_has_the_same_minus_sign() -> None:
    assert (percent(-0.04), percent(0.06), interval(-0.04, 10.0)) == ("0.0", "+0.1", "[0.0, +10.0]")
    sentence = "-4 % [-5, -3], as `nice -5` says"
    parts: list[Part] = [
        Tiles([("-4 %", "[-5, -3]")]),
        Table(["a"], [[sentence]], below=sentence),
        Facts([("c", sentence)]),
        sentence,
    ]
    assert re.findall(r"-\d", json.dumps(components(parts), cls=PlotlyJSONEncoder)) == ["-5"] * 4, "those of commands"
    body = made(*parts).partition("<body")[2].partition("<script")[0].replace("\u00a0", " ")
    assert body.count("−4 % [−5, −3], as <code>nice -5</code> says") == 4
    assert "<dt>[−5, −3]</dt><dd>−4 %</dd>" in body


def test_the_bundle_is_plotlys_own_and_the_page_is_light() -> None:
    from plotly.offline import get_plotlyjs

    text = made(Chart("D", "says", {"": figure()}))
    assert unpacked(text, "bundle") == get_plotlyjs()
    assert len(text.encode()) < 3_000_000
    assert text == made(Chart("D", "says", {"": figure()}))


@pytest.mark.long
@pytest.mark.browser
@needs_browser
def test_a_page_that_is_loaded_has_drawn_its_figures(tmp_path: Path) -> None:
    """What takes a picture of it at once, those far below included: on a window of 600 pixels."""
    path = tmp_path / "page.html"
    path.write_text(made(*[Chart(f"D{number}", "says", {"": figure(height=900)}) for number in range(4)]))
    document = rendered(path, tmp_path / "profile", width=800, height=600, wait_s=0)
    assert document.count('data-drawn="1"') == 4
    assert "<iframe" not in document


def test_a_reader_without_scripts_is_told_why_there_are_no_figures() -> None:
    assert "<noscript>" in made(Chart("D", "says", {"": figure()}))
    assert "<noscript>" not in made(Table(["a"], [["1"]]))


def test_text_is_never_markup() -> None:
    table = Table([NASTY], [[NASTY]], NASTY, NASTY)
    parts: list[Part] = [NASTY, Tiles([(NASTY, NASTY)]), Facts([(NASTY, NASTY)], NASTY), Section(NASTY, [table], NASTY)]
    text = page(Document(NASTY, parts, [NASTY]))
    assert "<script>document" not in text
    assert "{braces}" in text


def test_a_table_that_is_wider_than_a_telephone_is_cards_there() -> None:
    assert 'class="wide cards"' in made(Table(["GPU", "why"], [["c001-8/0", "heat for 61 % of the time, at 86 °C"]]))
    assert 'class="wide"' in made(Table(["GPU", "runs"], [["c001-8/0", 22]]))
    remarks = made(Table(["policy", "saved", ""], [["pal", "2.1 % [1.9, 2.3]", "no gain that can be measured"]]))
    assert 'data-head="saved"' in remarks
    assert 'data-head=""' not in remarks, "a remark is not led by a colon"


def test_what_stands_between_two_backticks_is_code() -> None:
    text = page(Document("T", [f"Run `whorl sql {NASTY}` now.", Table(["a"], [["a `b"]])]))
    assert "Run <code>whorl sql &lt;script&gt;" in text
    assert "</code> now." in text
    assert "<td>a `b</td>" in text


def test_a_fold_is_closed_and_its_figures_are_drawn_when_it_opens() -> None:
    text = page(Document("T", [Section("Words", ["A word."], folded=True), Section("", ["Untitled."])]))
    assert "<details><summary><h2>Words</h2></summary><p>A word.</p></details>" in text
    assert "<h2></h2>" not in text


def test_figures_to_choose_from_are_numbered_in_their_order() -> None:
    text = made(Chart("D", "s", {"one": figure(1), "two": figure(2)}), Chart("E", "s", {"": figure(3)}))
    assert re.findall(r'<option value="(\d)">(\w+)', text) == [("0", "one"), ("1", "two")]
    assert re.findall(r'data-figure="(\d)"', text) == ["0", "2"]
    figures = json.loads(unpacked(text, "figures"))
    assert [row["data"][0]["y"][1] for row in figures] == [1, 2, 3]


@pytest.mark.long
@pytest.mark.browser
@needs_browser
def test_a_page_whose_bundle_is_torn_says_so(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    text = made(Chart("D", "s", {"": figure()}))
    path.write_text(re.sub(r'id="bundle">[^<]{1000}', 'id="bundle">', text))
    document = rendered(path, tmp_path / "profile")
    assert ">This browser cannot show the figures: " in document
    assert 'data-drawn="1"' not in document


@pytest.mark.browser
@needs_browser
@pytest.mark.long
def test_what_a_dark_window_shows_is_dark_on_light_on_paper_and_no_wider_than_it(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    printing = """<script>setTimeout(() => {
      const ink = () => getComputedStyle(document.body).color, plot = document.querySelector(".plot");
      const seen = [ink(), plot.layout.paper_bgcolor];
      dispatchEvent(new Event("beforeprint"));
      seen.push(ink(), plot.layout.width, plot.layout.paper_bgcolor);
      dispatchEvent(new Event("afterprint"));
      document.body.dataset.seen = [...seen, ink()].join(";");
    }, 3000)</script></body>"""
    path.write_text(made(Chart("D", "says", {"": figure()})).replace("</body>", printing))
    document = rendered(path, tmp_path / "profile", "--blink-settings=preferredColorScheme=0", "--force-dark-mode")
    match = re.search(r'data-seen="([^"]*)"', document)
    assert match is not None
    assert match[1] == "rgb(227, 230, 234);#14171b;rgb(29, 33, 39);700;#fff;rgb(227, 230, 234)"


# -- long tables -------------------------------------------------------------------------------------------------

HOSTILE = "<img src=x onerror=\"document.title='gone'\">"
MANY = 3_000


def _page(count: int = MANY) -> str:
    names = [HOSTILE, *(f"n{number:04}/0" for number in range(1, count))]
    slower: list[float | None] = [None if number % 7 == 3 else (number % 100) / 10 - 2 for number in range(count)]
    listing = Listing(
        "All GPUs",
        "Says <b>.",
        {"GPU": names, "finding": ["none"] * count},
        [Column("slower, %", "percent", 1), Column("runs", "number", 0)],
        {"gemm": [slower, [3.0] * count], "stream": [[float("nan"), *slower[1:]], [None] * count]},
        "probe",
    )
    return page(Document("Title", ["What matters.", Section("Part", [listing])]))


def test_rows_are_packed_and_what_is_missing_is_null() -> None:
    text = _page(10)
    (content,) = json.loads(unpacked(text, "listings"))
    assert content["texts"][0][1][0] == HOSTILE
    gemm, stream = content["values"]
    assert gemm == ["gemm", [[-2.0, -1.9, -1.8, None, -1.6, -1.5, -1.4, -1.3, -1.2, -1.1], [3] * 10]]
    assert stream[1][0][0] is None
    assert HOSTILE not in text
    assert "Says &lt;b&gt;." in text
    assert unpacked(text, "bundle") == "", "a table needs no Plotly"
    assert re.findall(r'(?:src|href)\s*=\s*"(?!#)|https?:', text) == []


@pytest.mark.long
@pytest.mark.browser
@needs_browser
def test_a_reader_sorts_filters_and_opens_rows(tmp_path: Path) -> None:
    from playwright.sync_api import sync_playwright

    path = tmp_path / "page.html"
    path.write_text(_page(), encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        text = browser.new_page(viewport={"width": 390, "height": 900}, color_scheme="dark")
        errors: list[str] = []
        text.on("pageerror", lambda error: errors.append(str(error)))
        text.goto(path.as_uri())
        rows = text.locator(".listing .rows tbody tr:not(.gap)")
        rows.first.wait_for()
        sentence = text.locator(".listing .controls [role=status]")
        assert sentence.inner_text() == "3,000 of 3,000"
        assert rows.count() < 60, "only what is seen is drawn"

        def column(place: int) -> list[str]:
            return [row.locator("td").nth(place).inner_text() for row in rows.all()[:8]]

        assert set(column(2)) == {"+7.9"}, "the slowest first"
        head = text.get_by_role("button", name=re.compile("^slower"))
        head.click()
        assert column(2)[0] == "−2.0"
        text.locator(".listing .rows").evaluate("one => one.scrollTop = one.scrollHeight")
        text.wait_for_function("() => document.querySelector('.listing tbody').innerText.includes('n/a')")
        assert text.locator(".listing tbody tr:not(.gap)").last.locator("td").nth(2).inner_text() == "n/a"
        head.click()
        text.locator(".listing .rows").evaluate("one => one.scrollTop = one.scrollHeight")
        text.wait_for_function("() => document.querySelector('.listing tbody').innerText.includes('n/a')")
        text.get_by_label("slower, % at least").fill("7.8")
        expected = sum(number % 7 != 3 and number % 100 >= 98 for number in range(MANY))
        assert sentence.inner_text() == f"{expected} of 3,000"
        text.get_by_label("slower, % at least").fill("")
        text.get_by_label("with the words").fill("IMG onerror")
        assert sentence.inner_text() == "1 of 3,000"
        assert column(0) == [HOSTILE]
        rows.first.get_by_role("button").click()
        opened = text.locator(".listing .opened")
        assert HOSTILE in opened.inner_text()
        assert re.search(r"gemm\s+−2\.0\s+3\s+stream\s+n/a\s+n/a", opened.inner_text())
        assert text.locator("img").count() == 0
        assert text.title() == "Title"
        assert text.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert errors == []
        browser.close()
