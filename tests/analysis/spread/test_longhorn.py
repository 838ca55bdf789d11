"""Worked examples on the published Longhorn files, computed beforehand with numpy, scipy and DuckDB."""

from __future__ import annotations

import polars as pl

from whorl.analysis import variability
from whorl.tests.analysis.longhorn import needs_longhorn, runs

pytestmark = needs_longhorn


def test_process_numbers_are_no_jobs() -> None:
    # resnet50's own job_id has one chance repeat among 1,403: a group of two must not pass for a sample of jobs.
    frame = runs("resnet50").with_columns(job_id=pl.int_range(pl.len()).clip(1).cast(pl.String))
    found = variability(frame, replicates=0)[0].icc_job
    assert found.value is None
    assert found.reason == "fewer than half of the runs share their job with another GPU"
