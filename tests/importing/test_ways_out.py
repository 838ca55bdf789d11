"""What a sentence says to type is typed, as it stands: then the file is imported."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from whorl.cli import cli
from whorl.tests.sizes import sample

WORDS = {"UNIT": "ms", "NAME": "n1/0", "TIME": "2026-05-04T10:00:00", "SECONDS": "1"}
GPU = "GPU-0a1b2c3d-0000-1111-2222-333344445555"
CLOCKS = [f"2026/05/04 10:00:{second:02d}.{ms:03d}" for second in range(10) for ms in (0, 3, 6, 9)]
CASES: dict[str, tuple[str, str, str]] = {
    # the header and rows, the options that are there already, the option that the sentence names
    "no unit": (f"exp,uuid,perf\nsgemm,{GPU},2400\nsgemm,{GPU},2401", "", "--unit perf=ms"),
    "no unit, mapped": ("board,took\na,2400\nb,2401", "--map board=gpu --map took=time", "--unit took=ms"),
    "no unit of a metric": (
        f"timestamp,uuid,w\n1748000000,{GPU},61", "--map w=power", "--map w=power:mW"
    ),
    "another unit": (
        f"timestamp,uuid,power.draw [W]\n1748000000,{GPU},61 mW", "", "--unit 'power.draw [W]=UNIT'"
    ),
    "an impossible unit": (
        f"timestamp,uuid,power.draw\n1748000000,{GPU},61000", "", "--unit power.draw=UNIT"
    ),
    "other names": ("timestamp,uuid,power.draw [W]\n1748000000,GPU-v00-0,61", "", "--map uuid=gpu"),
    "numbers on nodes": (
        "host,gpu,s\nn1,0,2\nn2,0,3", "--map gpu=gpu --map s=time:s", "--map gpu=index"
    ),
    "numbers on a node": ("gpu,s,host\n0,2,n1\n1,3,n1", "--map gpu=gpu --map s=time:s", "--map gpu=index"),
    "how many GPUs": (
        "job_id,node,gpus,began,ended\n7,n1,2,1748000000,1748000100", "", "--map gpus=gpu"
    ),
    "no GPU": ("exp,perf_ms\nsgemm,2400", "", "--gpu NAME"),
    "no times": ("power.draw [W],index\n60,0\n61,0", "", "--at TIME --every SECONDS"),
    "in turn": (
        "\n".join(["timestamp,power.draw [W]", *(f"{clock},6{n % 4}.1" for n, clock in enumerate(CLOCKS))]), "",
        "--gpu NAME",
    ),
    "no header": (
        "\n".join(f"{clock},{GPU},61" for clock in CLOCKS[::4]),
        "",
        "--set header=timestamp,uuid,power.draw",
    ),
}  # fmt: skip


@pytest.mark.long(short=1)
@pytest.mark.parametrize("case", sample(list(CASES), short=5))
def test_what_the_sentence_says_to_type_works(case: str, tmp_path: Path) -> None:
    content, options, way_out = CASES[case]
    path = tmp_path / "file.csv"
    path.write_text(content)
    command = ["import", "--store", str(tmp_path / "store")]
    refused = CliRunner().invoke(cli, [*command, *shlex.split(options), str(path)])
    assert refused.exit_code == 2, refused.output
    assert way_out in " ".join(refused.stderr.split())
    assert len(refused.stderr) <= 400 + len(str(path))
    typed = re.sub("|".join(WORDS), lambda word: WORDS[word[0]], way_out.replace("=UNIT", "=mW"))
    words = shlex.split(typed)
    column = words[1].partition("=")[0] if words[0] == "--map" else None
    kept = re.sub(rf"--map {column}=\S+", "", options) if column else options
    done = CliRunner().invoke(cli, [*command, *shlex.split(kept), *words, str(path)])
    assert done.exit_code == 0, done.output
