"""The judge on real files. Who is named on Longhorn stands in tests/contract/golden/longhorn/verdicts.json."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from whorl.analysis.runs.probing import probed
from whorl.analysis.verdicts.fingerprint import fingerprint
from whorl.analysis.verdicts.model import Model
from whorl.store import Store
from whorl.tests.analysis.longhorn import needs_longhorn, runs
from whorl.tests.conftest import BuiltOnce
from whorl.tests.contract.inputs import build_longhorn

pytestmark = needs_longhorn


@pytest.fixture(scope="module")
def files(built_once: BuiltOnce) -> Store:
    return Store.open(built_once("contract-longhorn", build_longhorn) / "store")


@pytest.mark.long
def test_what_jobs_do_to_times_is_no_spread_of_a_gpu(files: Store) -> None:
    """Its two sittings of SGEMM differ by 0.26 %; those of the ResNet jobs that it was in, by 4.8 %."""
    gpu = "GPU-b3fc68e5-25d0-8406-47ed-49613e4a207b"
    found = fingerprint(Model(probed(files, every=True))).filter(pl.col("figure") == "time_spread")
    [own] = found.filter(pl.col("gpu") == gpu)["value"]
    times = runs("sgemm").filter(pl.col("gpu") == gpu)
    pause = pl.col("began").diff().dt.total_hours().fill_null(0) >= 6
    sittings = times.sort("began").group_by(pause.cum_sum()).agg(pl.col("value").log().median())["value"]
    assert len(sittings) == 2
    assert own == pytest.approx(100 * np.std(sittings.to_numpy(), ddof=1), rel=0.05)


def test_judging_does_not_load_what_takes_a_second_to_import() -> None:
    """A store of 64 GPUs is judged in a second: `scipy.stats` alone takes as long to import."""
    code = (
        "import sys\nimport whorl.analysis.verdicts.judgements, whorl.dashboards.answers.judging\n"
        "from whorl.analysis.verdicts.null import Null\nimport numpy\n"
        "Null(numpy.random.default_rng(1).normal(0, 0.01, 64), 1e-4).p(numpy.array([0.05]))\n"
        "print(*sorted({'scipy.stats', 'whorl.store.importing.importer'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
