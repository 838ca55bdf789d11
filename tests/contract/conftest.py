"""Inputs that are built once, and the golden files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from whorl.tests.conftest import BuiltOnce
from whorl.tests.contract.harness import Copies, Golden, InputFolder, compare
from whorl.tests.contract.inputs import INPUTS, LONGHORN


@pytest.fixture(scope="module")
def bare_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A machine without a scheduler, a GPU, or settings of this user, so that answers are the same everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path_factory.mktemp("no-programs")))
        patch.setenv("WHORL_STATE", str(tmp_path_factory.mktemp("state")))
        for name in ("WHORL_STORE", "CUDA_VISIBLE_DEVICES", "NODE_NAME", "SBATCH_PARTITION", "SLURMD_NODENAME"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares with a golden file, or writes it with --update-golden."""

    def check(name: str, value: object) -> None:
        compare(name, value, update=request.config.getoption("--update-golden"))

    return check


@pytest.fixture(scope="session")
def input_folder(built_once: BuiltOnce) -> InputFolder:
    """The folder of an input: its store `store`, and files beside it. Tests only read it."""

    def get_folder(name: str) -> Path:
        if name == "longhorn" and not LONGHORN.is_dir():
            pytest.skip(f"the Longhorn files are not at {LONGHORN}")
        return built_once(f"contract-{name}", INPUTS[name].build)

    return get_folder


@pytest.fixture(scope="session")
def input_copy(input_folder: InputFolder, tmp_path_factory: pytest.TempPathFactory) -> InputFolder:
    """A copy of the folder of an input, which a test may change until it asks for the next."""
    copies: dict[str, Copies] = {}

    def get_copy(name: str) -> Path:
        if name not in copies:
            copies[name] = Copies(input_folder(name), tmp_path_factory.mktemp(name))
        return copies[name].next()

    return get_copy
