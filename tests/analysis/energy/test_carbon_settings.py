"""The settings of energy: what they mean, and what is refused with which sentence."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from whorl.analysis.energy.carbon import canonical, shipped_table
from whorl.analysis.energy.settings import ALWAYS, NEVER, EnergySettings, Method, find_settings, read_settings
from whorl.errors import InputError
from whorl.store.power_sensors import SENSOR_ERROR


def _ns(*moment: int) -> int:
    return int(datetime(*moment, tzinfo=UTC).timestamp()) * 10**9  # type: ignore[misc, arg-type]


def test_all_keys_are_understood(tmp_path: Path) -> None:
    path = tmp_path / "energy.toml"
    path.write_text(
        """
        time_zone = "Europe/Berlin"
        currency = "EUR"
        method = "location"
        pue = 1.25
        host_w = 70
        intensity = ["de.csv", "fr.csv"]
        embodied = { kg = 150, years = 5, source = "maker's sheet" }
        sensor = { gain_pct = 2, offset_w = 1.5 }
        electricity_maps = { zones = { DEU = "DE" }, timeout_s = 3 }

        [[zone]]
        value = "DE"
        until = 2026-04-01
        [[zone]]
        value = "FR"
        from = 2026-04-01
        until = 9999-12-31
        [[price]]
        value = 0.2
        cluster = "alpha"
        [[price]]
        value = 0.3
        [[factor]]
        zone = "DE"
        g_per_kwh = 25
        source = "the supplier"
        year = 2025
        """
    )
    stated = read_settings(path)
    moved = _ns(2026, 3, 31, 22)  # midnight of 1 April in Berlin, in summer time
    zones = [(place.began_ns, place.ended_ns, place.value) for place in stated.zones]
    assert zones == [(ALWAYS, moved, "DE"), (moved, NEVER, "FR")]
    assert [(row.value, row.cluster) for row in stated.price] == [(0.2, "alpha"), (0.3, None)]
    assert [row.path for row in stated.hours] == [tmp_path / "de.csv", tmp_path / "fr.csv"]
    assert (stated.embodied[0].kg, stated.factors[0].method) == (150, Method.LOCATION)
    assert stated.service is not None
    assert stated.service.answers == tmp_path / "electricity_maps.csv"
    assert stated.sensor.boards is None
    assert stated.sensor.covariance[0][0] < SENSOR_ERROR.covariance[0][0]


def test_settings_that_came_with_a_store_do_not_say_where_keys_go(tmp_path: Path) -> None:
    path = tmp_path / "energy.toml"
    path.write_text('[electricity_maps]\nurl = "https://elsewhere.example"\n')
    with pytest.raises(InputError, match="counts only in a file that you name with --settings"):
        find_settings(tmp_path)
    assert find_settings(tmp_path, path).service is not None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("pua = 1.2", "there is no key 'pua'; there are time_zone"),
        ("pue = 0.8", "pue must be from 1 to 5, not 0.8"),
        ("pue = true", "pue must be a number"),
        ("pue = nan", "pue must be a number"),
        ('pue = "1.2"', "pue must be a number, not '1.2'"),
        ("price = 0.2", 'price needs a currency: write currency = "EUR"'),
        ('zone = ""', "zone is empty"),
        ("zone = 4", "zone must be a text in quotes"),
        ('time_zone = "Berlin"', "there is no time zone 'Berlin'"),
        ('method = "both"', "method must be location or market, not 'both'"),
        ("intensity = 3", "file of intensity must be a text in quotes, not 3"),
        ("[[pue]]\nvalue = 1.2\nfrom = 3", "from of pue must be a date"),
        ("[[pue]]\nvalue = 1.2\nfrom = 2026-01-01\nuntil = 2025-01-01", "until of pue is not after from"),
        (
            "[[pue]]\nvalue = 1.2\nfrom = 2026-01-01\n[[pue]]\nvalue = 1.3",
            "pue number 2 holds at times at which another",
        ),
        ("[[pue]]\nfrom = 2026-01-01", "pue is missing"),
        ("[[factor]]\ng_per_kwh = 3\nsource = 's'\nyear = 2024", "zone of factor is missing"),
        ("[[factor]]\nzone = 'DE'\ng_per_kwh = 3\nyear = 2024", "source of factor is missing"),
        ("[[factor]]\nzone = 'DE'\ng_per_kwh = -3\nsource = 's'\nyear = 2024", "g_per_kwh of factor must be from 0 to"),
        ("embodied = 150", "embodied must be a table with the keys kg, years"),
        ("embodied = { kg = 150, years = 5 }", "source of embodied is missing"),
        ("sensor = { gain_pct = 2 }", "offset_w of sensor is missing"),
        ("electricity_maps = { key = 'secret' }", "there is no key 'key' in electricity_maps"),
        ("electricity_maps = {}\nwatttime = {}", "electricity_maps and watttime are both given: keep one"),
        ("watttime = { url = 'ftp://x' }", "url of watttime must begin with https://"),
        ("watttime = []", "watttime must be a table with the keys url"),
        ("electricity_maps = { zones = 'DE' }", "zones of electricity_maps must be a table of names"),
        ("watttime = { signal = 'health_damage' }", "signal of watttime must be co2_aoer or co2_moer"),
        ("zone = ", "is not a TOML file"),
        ("zone = " + "[" * 5000, "is not a TOML file"),
        ("pue = " + "9" * 5000, "is not a TOML file"),
    ],
)
def test_wrong_settings_are_refused_in_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "energy.toml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_settings(path)
    assert str(path) in str(error.value)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_the_shipped_table_names_year_and_zone_of_every_value() -> None:
    rows = shipped_table().values()
    assert len(rows) > 200
    assert all(0 < row.g_per_kwh < 1500 and 2020 <= row.year <= 2026 and row.name for row in rows)
    germany = shipped_table()[canonical("DE")]
    assert (germany.zone, germany.g_per_kwh, germany.year) == ("DEU", 344.14, 2024)
    assert canonical("germany") == canonical("DEU") == canonical(" de ") == "DEU"
    assert canonical("UK") == canonical("gb") == "GBR"
    # A part of a country is not the country: a site must say what it wants.
    assert canonical("us-cal-ciso") == "US-CAL-CISO"
    assert "US-CAL-CISO" not in shipped_table()


def test_the_examples_of_the_page_and_the_file_to_copy_are_settings(tmp_path: Path) -> None:
    docs = Path(__file__).resolve().parents[3] / "docs"
    examples = re.findall(r"```toml\n(.*?)```", (docs / "energy.md").read_text(), re.DOTALL)
    assert len(examples) >= 3
    template = (docs / "site" / "energy.toml").read_text()
    for number, example in enumerate([*examples, template, re.sub(r"^#(?=\S)", "", template, flags=re.MULTILINE)]):
        path = tmp_path / f"{number}.toml"
        path.write_text(example)
        assert read_settings(path, trusted=False) != EnergySettings()
    documented = set(re.findall(r"^#? ?\[*(\w+)(?:\]| = )", template, re.MULTILINE))
    (tmp_path / "wrong.toml").write_text("x = 1")
    with pytest.raises(InputError) as error:
        read_settings(tmp_path / "wrong.toml")
    assert set(str(error.value).rpartition("there are ")[2].split(", ")) <= documented
