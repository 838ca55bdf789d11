"""Grams of a kWh over time, against a plain search through the settings at each time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from whorl.analysis.energy.grid import rates
from whorl.analysis.energy.settings import (
    read_settings,
)
from whorl.errors import InputError

_HOUR = 3600 * 10**9


def test_a_file_without_zones_is_of_the_only_zone_of_the_settings(tmp_path: Path) -> None:
    """As docs/energy.md shows it; where there are two zones, nobody can tell which one it is."""
    (tmp_path / "hours.csv").write_text("time,g_per_kwh\n2026-01-01T00:00Z,412\n2026-01-01T01:00Z,405\n")
    settings = tmp_path / "energy.toml"
    settings.write_text('zone = "DE"\nintensity = "hours.csv"\n')
    began = 1_767_225_600 * 10**9
    assert rates(read_settings(settings), began, began + 2 * _HOUR, ["alpha"])["g_per_kwh"][:2].to_list() == [412, 405]
    settings.write_text('intensity = "hours.csv"\n[[zone]]\nvalue = "DE"\ncluster = "alpha"\n[[zone]]\nvalue = "FR"\n')
    with pytest.raises(InputError, match=r'no column of zones: .* \[\[intensity\]\] with file = "hours.csv" and zone'):
        rates(read_settings(settings), began, began + _HOUR, ["alpha"])


def test_a_node_without_polars_knows_what_a_kwh_emits(tmp_path: Path) -> None:
    (tmp_path / "energy.toml").write_text('zone = "DE"\npue = 1.5\n')
    program = """if True:
        import sys
        sys.modules["polars"] = sys.modules["scipy"] = None
        from pathlib import Path
        from whorl.analysis.energy.outlook import grams_per_kwh
        from whorl.analysis.energy.settings import find_settings
        now = grams_per_kwh(find_settings(Path(sys.argv[1])), "alpha", 1_767_225_600 * 10**9, ahead_s=3600)
        print(now.g_per_kwh, now.zone, now.basis, now.year, now.pue)
    """
    run = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert run.stdout == "344.14 DEU table 2024 1.5\n"
