"""Thousands of damaged files, or some of them: no traceback, no misread column or unit, every row accounted for."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from whorl.simulation.sample import write_sample
from whorl.tests.importing.mutations import run
from whorl.tests.sizes import count

DATA = Path(__file__).parents[3] / "shared" / "data"
REAL = (
    *(f"longhorn/{name}.csv.gz" for name in ("sgemm", "pagerank", "resnet50", "bert")),
    *(f"power/nvidia_smi_{name}.csv.gz" for name in ("a100_square_gpudata", "stuck_sensor")),
)


@pytest.fixture(scope="module")
def extracts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty rows of each generated file, and of each real one where they are."""
    folder = tmp_path_factory.mktemp("extracts")
    found = [DATA / name for name in REAL if (DATA / name).exists()]
    sources = {path.name.removesuffix(".gz"): gzip.decompress(path.read_bytes()) for path in found}
    made = write_sample(folder / "sample").files
    # An allocation may take the place of another line of its file, which is no duplicate.
    sources |= {f"sample-{path.name}": path.read_bytes() for path in made if path.name != "jobs.csv"}
    for name, data in sources.items():
        end = b"\r\n" if b"\r\n" in data else b"\n"
        header, *rows = [line for line in data.split(end) if line]
        (folder / name).write_bytes(end.join([header, *random.Random(1).sample(rows, 60)]))
    return folder


@pytest.mark.filterwarnings("error")
def test_damaged_files(extracts: Path, tmp_path: Path) -> None:
    tries = count(240, short=6)
    seen = run(extracts, 100_000, tries, tmp_path / "stores")
    assert seen.failures == []
    # The damage is neither so light that all is kept nor so heavy that nothing is judged.
    assert seen.kept + seen.refused == tries
    assert min(seen.kept, seen.refused) > 0.3 * tries
