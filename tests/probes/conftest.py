"""The GPUs of a node by the NVML of the tests, busy and with root's rights."""

from __future__ import annotations

import pytest

from whorl.tests.nvml_library import NvmlLibrary
from whorl.tests.probes.changing import BUSY, uuids


@pytest.fixture
def gpus(nvml: NvmlLibrary) -> list[str]:
    """The UUIDs of three busy GPUs whose settings can be changed."""
    nvml.write(*BUSY)
    return uuids()
