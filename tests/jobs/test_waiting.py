"""`ledger.greenest_start`: the greenest start, as an application asks for it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from whorl import ledger
from whorl.errors import InputError
from whorl.tests.without import NODE, run_without

_NOW = datetime(2026, 6, 1, 8, 30, tzinfo=UTC)


def _settings(folder: Path) -> Path:
    hours = [_NOW.replace(minute=0) + timedelta(hours=hour) for hour in range(12)]
    rows = [f"{hour:%Y-%m-%dT%H:%MZ},{100 if hour.hour == 14 else 300}" for hour in hours]
    (folder / "de.csv").write_text("time,g_per_kwh\n" + "\n".join(rows) + "\n")
    (folder / "energy.toml").write_text('zone = "DE"\nintensity = { file = "de.csv", zone = "DE" }\n')
    return folder / "energy.toml"


def test_the_start_with_the_fewest_grams_is_given_in_utc(tmp_path: Path) -> None:
    deadline = (_NOW + timedelta(hours=10)).astimezone()
    found = ledger.greenest_start(_settings(tmp_path), hours=1, watts=500, deadline=deadline, now=_NOW)
    assert found.start_time == datetime(2026, 6, 1, 14, tzinfo=UTC)
    assert (found.g, found.now_g, found.saved_g) == pytest.approx((50, 150, 100))


def test_what_cannot_be_answered_is_one_sentence(tmp_path: Path) -> None:
    path = _settings(tmp_path)
    with pytest.raises(InputError, match="deadline has no time zone"):
        ledger.greenest_start(path, hours=1, watts=500, deadline=datetime(2026, 6, 1, 20), now=_NOW)  # noqa: DTZ001
    with pytest.raises(InputError, match="the job takes 3 h and the deadline is 2 h away"):
        ledger.greenest_start(path, hours=3, watts=500, deadline=_NOW + timedelta(hours=2), now=_NOW)
    with pytest.raises(InputError, match="there is no such file"):
        ledger.greenest_start(tmp_path / "no.toml", hours=1, watts=500, deadline=_NOW + timedelta(hours=2))


def test_a_node_without_the_packages_for_analysis_says_so(tmp_path: Path) -> None:
    code = (
        "import datetime, sys\nfrom whorl import ledger\nfrom whorl.errors import WhorlError\n"
        "later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=9)\n"
        "try:\n    ledger.greenest_start(sys.argv[1], hours=1, watts=1, deadline=later)\n"
        "except WhorlError as error:\n    print(error)"
    )
    done = run_without(NODE, code, _settings(tmp_path))
    sentence = r"the greenest start needs the package (polars|scipy): install whorl with all it needs\n"
    assert re.fullmatch(sentence, done.stdout), done.stderr
