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

from whorl.dashboards.app.page import prose, rows, tiles
from whorl.dashboards.page import Drawing, Section, page
from whorl.dashboards.table import Table, minus, signed
from whorl.dashboards.words import interval, percent
from whorl.tests.dashboards.browser import needs_browser, rendered

NASTY = '<script>document.title = "gone"</script> & "quoted" {braces}'


def figure(y: float = 2.0, height: int = 300) -> Any:
    return go.Figure([go.Bar(x=["a", "b"], y=[1.0, y], name=NASTY)], {"height": height, "template": "none"})


def made(*parts: Table | Drawing, **more: Any) -> str:
    return page("Title", ["What matters."], [Section("Part", "Says.", parts)], **more)


def unpacked(text: str, name: str) -> str:
    found = re.search(rf'id="{name}">([^<]*)<', text)
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1])).decode() if found[1] else ""


def test_a_page_without_figures_carries_no_bundle() -> None:
    text = made(Table(["a", "b"], [["1", "2"]], [1]), conditions={"seeds": "3"}, notes=["A note."])
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
    ("text", "shown"),
    [
        ("-0.45 kWh", "−0.45 kWh"),
        ("lost [-1.2, -.5]; 3 GPUs", "lost [−1.2, −.5]; 3 GPUs"),
        ("a\u00a0(-2 to -1)<br>-3", "a\u00a0(−2 to −1)<br>−3"),
        ("n-1 on 2026-11-23, 1e-05, 5-10 %, --last -a", "n-1 on 2026-11-23, 1e-05, 5-10 %, --last -a"),
    ],
)
def test_a_negative_number_has_a_minus_sign_and_a_name_its_hyphen(text: str, shown: str) -> None:
    assert minus(text) == minus(shown) == shown


def test_every_part_of_a_page_has_the_same_minus_sign() -> None:
    assert (signed(-0.5), signed(2, 1), signed(-0.004)) == ("−0.50", "+2.0", "0.00")
    assert (percent(-0.04), percent(0.06), interval(-0.04, 10.0)) == ("0.0", "+0.1", "[0.0, +10.0]")
    said = "-4 % [-5, -3], as `nice -5` says"
    parts = [tiles([("-4 %", "[-5, -3]")]), rows(["a"], [["-4 %"], [3]], label="l"), prose(said)]
    of_app = json.dumps(parts, cls=PlotlyJSONEncoder)
    assert re.findall(r"-\d", of_app) == ["-5"], "that of the command"
    report = made(Table(["a"], [[said]], says=said), tiles=[("-4 %", "[-5, -3]")], conditions={"c": said}, notes=[said])
    body = report.partition("<body")[2].partition("<script")[0]
    assert body.count("−4 % [−5, −3], as <code>nice -5</code> says") == 4
    assert "<b>−4 %</b><span>[−5, −3]</span>" in body


def test_the_bundle_is_plotlys_own_and_the_page_is_light() -> None:
    from plotly.offline import get_plotlyjs

    text = made(Drawing("D", "says", {"": figure()}))
    assert unpacked(text, "bundle") == get_plotlyjs()
    assert len(text.encode()) < 3_000_000
    assert text == made(Drawing("D", "says", {"": figure()}))


@pytest.mark.long
@pytest.mark.browser
@needs_browser
def test_a_page_that_is_loaded_has_drawn_its_figures(tmp_path: Path) -> None:
    """What takes a picture of it at once, those far below included: on a window of 600 pixels."""
    path = tmp_path / "page.html"
    path.write_text(made(*[Drawing(f"D{number}", "says", {"": figure(height=900)}) for number in range(4)]))
    document = rendered(path, tmp_path / "profile", width=800, height=600, wait_s=0)
    assert document.count('data-drawn="1"') == 4
    assert "<iframe" not in document


def test_a_reader_without_scripts_is_told_why_there_are_no_figures() -> None:
    assert "<noscript>" in made(Drawing("D", "says", {"": figure()}))
    assert "<noscript>" not in made(Table(["a"], [["1"]]))


def test_nothing_is_fetched() -> None:
    text = made(Drawing("D", "says", {"": figure()}))
    outside = re.findall(r'(?:src|href)\s*=\s*"([^"]*)"|url\(([^)]*)\)|@import', text)
    assert [address for address in outside if not address[0].startswith("#")] == []


def test_tiles_and_the_title_of_a_table_are_on_the_page() -> None:
    text = page("T", [], [Section("S", "", [Table(["a"], [["1"]], title="Of", says="All.")])], tiles=[("7", "of them")])
    assert '<div class="tiles"><div><b>7</b><span>of them</span></div></div>' in text
    assert '<h3 class="of">Of</h3><p class="soft">All.</p>' in text


def test_a_table_of_cards_names_each_cell() -> None:
    text = made(Table(["a", "b"], [["1", "2"]], wrapped=[1], cards=True))
    assert '<table class="cards">' in text
    assert '<td data-head="a">1</td><td class="w" data-head="b">2</td>' in text


def test_text_is_never_markup() -> None:
    text = page(
        NASTY,
        [NASTY],
        [Section(NASTY, NASTY, [Table([NASTY], [[NASTY]], title=NASTY, says=NASTY, cards=True)])],
        conditions={NASTY: NASTY},
        notes=[NASTY],
        tiles=[(NASTY, NASTY)],
    )
    assert "<script>document" not in text
    assert "{braces}" in text


def test_what_stands_between_two_backticks_is_code() -> None:
    text = page("T", [f"Run `whorl sql {NASTY}` now."], [Section("P", "", [Table(["a"], [["a `b"]], [])])])
    assert "Run <code>whorl sql &lt;script&gt;" in text
    assert "</code> now." in text
    assert "<td>a `b</td>" in text


def test_figures_to_choose_from_are_numbered_in_their_order() -> None:
    text = made(Drawing("D", "s", {"one": figure(1), "two": figure(2)}), Drawing("E", "s", {"": figure(3)}))
    assert re.findall(r'<option value="(\d)">(\w+)', text) == [("0", "one"), ("1", "two")]
    assert re.findall(r'data-figure="(\d)"', text) == ["0", "2"]
    figures = json.loads(unpacked(text, "figures"))
    assert [one["data"][0]["y"][1] for one in figures] == [1, 2, 3]


@pytest.mark.long
@pytest.mark.browser
@needs_browser
def test_a_page_whose_bundle_is_torn_says_so(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    text = made(Drawing("D", "s", {"": figure()}))
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
    path.write_text(made(Drawing("D", "says", {"": figure()})).replace("</body>", printing))
    document = rendered(path, tmp_path / "profile", "--blink-settings=preferredColorScheme=0", "--force-dark-mode")
    found = re.search(r'data-seen="([^"]*)"', document)
    assert found is not None
    assert found[1] == "rgb(227, 230, 234);#14171b;rgb(29, 33, 39);700;#fff;rgb(227, 230, 234)"
