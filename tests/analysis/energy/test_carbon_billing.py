"""Grams and money of pieces: each figure again by hand, and where it comes from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from whorl.analysis.energy.billing import cuts, factors_used, hours_share, priced, rates_between
from whorl.analysis.energy.carbon import NoFigure
from whorl.analysis.energy.settings import EnergySettings, read_settings

_MIDNIGHT = datetime(2026, 1, 1, tzinfo=UTC)
_HOUR = 3600 * 10**9


def _ns(moment: datetime) -> int:
    return int(moment.timestamp()) * 10**9


def _settings(folder: Path, text: str) -> EnergySettings:
    (folder / "energy.toml").write_text(text)
    return read_settings(folder / "energy.toml")


def _rates(settings: EnergySettings, *clusters: str) -> pl.DataFrame:
    """Of the first three days of January."""
    began = _ns(_MIDNIGHT)
    return rates_between(settings, began, began + 72 * _HOUR, clusters or ["alpha"])


def _priced(pieces: pl.DataFrame, settings: EnergySettings, models: pl.DataFrame | None = None) -> pl.DataFrame:
    return priced(pieces, _rates(settings, *pieces["cluster"].unique()), settings, models)


def _pieces(
    hours: list[float], energy_j: list[float | None], cluster: str = "alpha", share: float = 1.0
) -> pl.DataFrame:
    """One piece between each two of these hours of 1 January."""
    times = [(_MIDNIGHT + timedelta(hours=hour)).replace(tzinfo=None) for hour in hours]
    return pl.DataFrame(
        {
            "cluster": cluster,
            "gpu": "GPU-1",
            "began": pl.Series(times[:-1], dtype=pl.Datetime("ns")),
            "ended": pl.Series(times[1:], dtype=pl.Datetime("ns")),
            "share": share,
            "energy_j": pl.Series(energy_j, dtype=pl.Float64),
        }
    )


def test_hours_first_then_what_is_stated_then_the_table(tmp_path: Path) -> None:
    (tmp_path / "de.csv").write_text("zone,time,g_per_kwh\nDE,2026-01-01T00:00Z,500\nDE,2026-01-01T01:00Z,100\n")
    text = 'zone = "DE"\npue = 1.5\nprice = 0.2\ncurrency = "EUR"\nintensity = "de.csv"\n'
    settings = _settings(tmp_path, text)
    pieces = _pieces([0, 1, 2, 3], [3.6e6, 3.6e6, 7.2e6])
    billed = _priced(pieces, settings)
    assert billed["co2e_g"].to_list() == pytest.approx([750, 150, 2 * 1.5 * 344.14])
    assert billed["cost"].to_list() == pytest.approx([0.3, 0.3, 0.6])
    used = factors_used(billed, _rates(settings))
    assert used.select("zone", "basis", "source", "year", "low_g_per_kwh", "high_g_per_kwh", "pue").rows() == [
        ("DEU", "table", "Ember, Yearly Electricity Data, edition of 2025", 2024, 344.14, 344.14, 1.5),
        ("DEU", "hours", "de.csv", None, 100.0, 500.0, 1.5),
    ]
    assert used["energy_j"].to_list() == [7.2e6, 7.2e6]
    assert hours_share(used) == 0.5
    stated = text + '[[factor]]\nzone = "Germany"\ng_per_kwh = 30\nsource = "own"\nyear = 2025\n'
    assert _priced(pieces, _settings(tmp_path, stated))["co2e_g"].to_list() == pytest.approx([750, 150, 90])


def test_the_market_is_the_contract_and_nothing_else(tmp_path: Path) -> None:
    text = """
    zone = "DE"
    method = "market"
    [[factor]]
    method = "market"
    g_per_kwh = 12
    source = "certificate 4711"
    year = 2026
    until = 2026-01-01T01:00:00Z
    """
    settings = _settings(tmp_path, text)
    assert cuts(_rates(settings)).tolist() == [_ns(_MIDNIGHT) + _HOUR]
    billed = _priced(_pieces([0, 1, 2], [3.6e6, 3.6e6]), settings)
    assert billed["co2e_g"].to_list() == [pytest.approx(12), None]
    assert billed["carbon_reason"].to_list() == [None, NoFigure.NO_CONTRACT]
    assert factors_used(billed, _rates(settings)).select("method", "source", "pue").rows() == [
        ("market", "certificate 4711", None)
    ]


def test_what_holds_for_a_time_or_a_cluster(tmp_path: Path) -> None:
    text = """
    currency = "EUR"
    time_zone = "Europe/Berlin"
    [[zone]]
    value = "FR"
    cluster = "beta"
    [[zone]]
    value = "DE"
    until = 2026-01-01T03:00:00
    [[zone]]
    value = "NO"
    from = 2026-01-01T03:00:00
    [[pue]]
    value = 2.0
    from = 2026-01-01T02:00:00
    until = 2026-01-01T03:00:00
    """
    settings = _settings(tmp_path, text)
    cut_ns = cuts(_rates(settings, "alpha", "beta"))
    assert ((cut_ns - _ns(_MIDNIGHT)) / _HOUR).tolist() == [1, 2]  # 02:00 and 03:00 in Berlin
    pieces = pl.concat([_pieces([0, 1, 2, 3], [3.6e6] * 3), _pieces([0, 1, 2], [3.6e6] * 2, "beta")])
    billed = _priced(pieces, settings)
    assert billed["co2e_g"].to_list() == pytest.approx([344.14, 2 * 344.14, 30.75, 44.18, 2 * 44.18])
    assert billed["cost_reason"].unique().to_list() == [NoFigure.NO_PRICE]


def test_a_missing_figure_is_null_with_a_reason(tmp_path: Path) -> None:
    pieces = _pieces([0, 1, 2], [3.6e6, None])
    nothing = _priced(pieces, EnergySettings())
    assert nothing["co2e_g"].null_count() == nothing["cost"].null_count() == nothing["embodied_g"].null_count() == 2
    assert nothing["carbon_reason"].to_list() == [NoFigure.NO_ZONE, NoFigure.NO_ENERGY]
    assert nothing["cost_reason"].to_list() == [NoFigure.NO_PRICE, NoFigure.NO_ENERGY]
    unknown = _priced(pieces, _settings(tmp_path, 'zone = "US-CAL-CISO"'))
    assert unknown["carbon_reason"].to_list() == [NoFigure.NO_FACTOR, NoFigure.NO_ENERGY]
    assert factors_used(unknown, _rates(EnergySettings())).is_empty()
    assert _priced(pieces[:0], EnergySettings()).columns == nothing.columns


def test_embodied_grams_and_the_energy_of_the_host(tmp_path: Path) -> None:
    text = """
    zone = "FR"
    [[embodied]]
    kg = 87.66
    years = 10
    source = "a guess"
    [[embodied]]
    model = "H100"
    kg = 175.32
    years = 10
    source = "the maker"
    """
    settings = _settings(tmp_path, text)
    pieces = _pieces([0, 1], [3.6e6], share=0.5).with_columns(measured_host_j=pl.lit(1.8e6))
    billed = _priced(pieces, settings)
    assert billed["co2e_g"].to_list() == pytest.approx([1.5 * 44.18])
    assert billed["host_source"].to_list() == ["measured"]
    # Without a meter of the node, what the settings state counts: 1.5 kW x 0.5 for an hour.
    stated = _priced(
        pieces.with_columns(measured_host_j=pl.lit(None, pl.Float64)), _settings(tmp_path, "host_w = 1500")
    )
    assert stated.select("host_j", "host_source").row(0) == (pytest.approx(2.7e6), "stated")
    assert billed["embodied_g"].to_list() == pytest.approx([0.5])  # 87,660 g over 87,660 hours
    assert _priced(pieces, settings, _model("H100"))["embodied_g"].to_list() == pytest.approx([1.0])
    assert _priced(pieces, settings, _model("A100"))["embodied_g"].to_list() == pytest.approx([0.5])


def _model(name: str) -> pl.DataFrame:
    return pl.DataFrame({"cluster": ["alpha"], "gpu": ["GPU-1"], "model": [name]})
