"""The compiler of the host in the GPU's place: what its libraries share."""

from __future__ import annotations

import ctypes

import pytest

from whorl.kernels.sources import source
from whorl.tests.kernels import hosting

pytestmark = pytest.mark.skipif(hosting.COMPILER is None, reason="no g++ to compile CUDA C for the host with")


@pytest.mark.long
def test_two_libraries_share_no_arguments_of_kernels() -> None:
    """Kernels with the same parameters, in two libraries: threads may run them at the same time."""
    text = source("launch.cu", hosting.SHIM)
    libraries = [hosting.built(text, ("TWICE=1",) * number) for number in (1, 2)]
    name = "_ZN4host7CurrentINS_4CallIJPjjEEEE4callE"  # host::Current<host::Call<unsigned*, unsigned>>::call
    places = [ctypes.addressof(ctypes.c_void_p.in_dll(library, name)) for library in libraries]
    assert places[0] != places[1]
