"""The cluster that the other tests rest on: it runs jobs of ordinary users and tells them their GPUs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from whorl.tests.slurm.daemons import GPUS, Slurm

pytestmark = pytest.mark.slurm


def test_nothing_listens_beyond_this_machine(slurm: Slurm) -> None:
    ports = {f"{port:04X}" for port in slurm._ports}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    addresses = {row[1].partition(":")[0] for row in rows if row[3] == "0A" and row[1].partition(":")[2] in ports}
    assert addresses == {"0100007F"}
    assert os.geteuid() == 0
    assert GPUS * slurm.nodes == 24


def test_doctor_says_yes_where_the_controller_answers(slurm: Slurm) -> None:
    document = json.loads(slurm.whorl("doctor", "--json", user="alice").stdout)
    (found,) = [one for one in document["findings"] if one["what"] == "Slurm"]
    assert found["works"]
    assert "3 partitions" in found["detail"]
