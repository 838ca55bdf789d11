"""The judge on real files. Who is named on Longhorn stands in tests/contract/golden/longhorn/verdicts.json."""

from __future__ import annotations

import subprocess
import sys

from whorl.tests.analysis.longhorn import needs_longhorn

pytestmark = needs_longhorn


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
