"""Report, dashboard and hints lead with one workload: the one whose spread belongs to the GPUs and is widest."""

from __future__ import annotations

import pytest

from whorl.analysis.spread.repeats import Belongs
from whorl.cli.answers.advice import Advisor
from whorl.dashboards.app.brush import choose
from whorl.dashboards.app.placement import PAGE
from whorl.dashboards.app.reading import Reading
from whorl.dashboards.app.state import State
from whorl.dashboards.report import look, next_commands
from whorl.store import Store
from whorl.tests.analysis.longhorn import needs_longhorn
from whorl.tests.conftest import BuiltOnce
from whorl.tests.contract.inputs import build_longhorn


@pytest.mark.long
@needs_longhorn
def test_all_lead_with_the_widest_spread_that_belongs_to_the_gpus(built_once: BuiltOnce) -> None:
    """The times of resnet spread wider, and belong to its jobs."""
    store = Store.open(built_once("contract-longhorn", build_longhorn) / "store")
    looked = look(store)
    widths = {row.workload: row.fence_pct or 0.0 for row in looked.spread if row.level == "gpu"}
    assert max(widths, key=lambda name: widths[name]) == "resnet"
    assert looked.leading == ("sgemm", Belongs.GPUS)
    assert looked.machine() == looked.machine("sgemm")
    differ = f"The GPUs differ most in sgemm, by {widths['sgemm']:.1f} % (n = 392): the difference belongs to the GPUs."
    assert differ in looked.page()
    assert any(line.endswith(" --workload sgemm") for line in next_commands(looked, "S", None))
    reading = Reading(store, advise=Advisor())
    options, _ = choose(reading, State())
    assert options is not None
    assert options.workload == "sgemm"
    assert "], value='longhorn\\t', clearable=False, id='placement-workload'" in str(PAGE.layout(reading, State()))
