"""Thousands of damaged files, or some of them: no traceback, no misread column or unit, every row accounted for."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from whorl.simulation.sample import write_sample
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


def test_damaged_files(extracts: Path, tmp_path: Path) -> None:
    script = Path(__file__).with_name("mutations.py")
    pairs, parsed, stored = count(2, short=1), count(120, short=0), count(40, short=6)
    plan: list[tuple[int, int, list[Path]]] = []
    for number in range(pairs):
        plan += [(100_000 * (number + 1), parsed, []), (100_000 * (number + 3), stored, [tmp_path / f"S{number}"])]
    plan = [one for one in plan if one[1]]
    seen = {"tried": 0, "kept": 0, "refused": 0}
    failures = []
    for pair in (plan[:2], plan[2:]):
        running = [
            subprocess.Popen(
                [sys.executable, "-W", "error", script, extracts, str(seed), str(files), *store],
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "POLARS_MAX_THREADS": "1"},
            )
            for seed, files, store in pair
        ]
        for process in running:
            out, _ = process.communicate()
            assert process.returncode == 0
            answer = json.loads(out)
            failures += answer.pop("failures")
            seen = {key: seen[key] + answer[key] for key in seen}
    assert failures == []
    assert seen["tried"] == pairs * (parsed + stored) == count(320, short=6)
    # The damage is neither so light that all is kept nor so heavy that nothing is judged.
    assert min(seen["kept"], seen["refused"]) > 0.3 * seen["tried"]
