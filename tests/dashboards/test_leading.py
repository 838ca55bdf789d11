"""Report, dashboard and hints lead with one workload: the one whose spread belongs to the GPUs and is widest."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from whorl.analysis.spread.findings import Belongs
from whorl.cli import cli
from whorl.cli.advising import Advisor
from whorl.dashboards.app.fleet.view import ask
from whorl.dashboards.app.placement.page import PAGE
from whorl.dashboards.app.reading import Reading
from whorl.dashboards.app.state import State
from whorl.dashboards.printed.campaign import next_commands
from whorl.dashboards.store_report import look
from whorl.store import Store
from whorl.tests.analysis.longhorn import FOLDER, needs_longhorn


@needs_longhorn
def test_all_lead_with_the_widest_spread_that_belongs_to_the_gpus(tmp_path: Path) -> None:
    """The times of resnet spread wider, and belong to its jobs."""
    files = sorted(map(str, FOLDER.glob("*.csv.gz")))
    done = CliRunner().invoke(cli, ["import", "--store", str(tmp_path / "S"), "--cluster", "longhorn", *files])
    assert done.exit_code == 0, done.output
    store = Store.open(tmp_path / "S")
    looked = look(store)
    widths = {row.workload: row.fence_pct or 0.0 for row in looked.spread if row.level == "gpu"}
    assert max(widths, key=lambda name: widths[name]) == "resnet"
    assert looked.leading == ("sgemm", Belongs.GPUS)
    assert looked.machine() == looked.machine("sgemm")
    page = looked.page()
    assert f"{widths['sgemm']:.1f} %" in page
    assert "spread of times in sgemm" in page
    assert any(line.endswith(" --workload sgemm") for line in next_commands(looked, "S"))
    reading = Reading(store, advise=Advisor())
    asked, _ = ask(reading, State())
    assert asked is not None
    assert asked.workload == "sgemm"
    assert "], value='longhorn\\tsgemm', clearable=False, id='placement-workload'" in str(PAGE.layout(reading, State()))
