"""The GPUs of this machine. Without one, or without CuPy, these tests are skipped and say why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from whorl.errors import WhorlError
from whorl.kernels.cupy_device import CupyDevice, cupy_devices


@pytest.fixture(scope="session")
def devices() -> Iterator[list[CupyDevice]]:
    try:
        opened = cupy_devices()
    except WhorlError as error:
        pytest.skip(f"no real GPU: {error}")
    yield opened
    for device in opened:
        device.close()


@pytest.fixture
def device(devices: list[CupyDevice]) -> CupyDevice:
    return devices[0]
