"""Damaged files of each format: they are read as far as they go, or refused in one sentence."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from whorl.errors import InputError
from whorl.store.importing import Options, read_file
from whorl.tests.importing import test_gpu_burn, test_nvbandwidth, test_profilers, test_superbench
from whorl.tests.sizes import count

_NVBANDWIDTH = {
    "nvbandwidth": {
        "version": "v0.8",
        "Driver Version": "550.54.15",
        "GPU Device list": [f"{n}: NVIDIA H100 80GB HBM3 (00000000:0{n}:00): (n1)" for n in range(3)],
        "testcases": [
            test_nvbandwidth.H2D, test_nvbandwidth.PEERS, test_nvbandwidth.BOTH_WAYS, test_nvbandwidth.LATENCY,
        ],
    }
}  # fmt: skip
_SUPERBENCH = test_superbench.LAUNCH | {
    "node": "n1",
    "gemm-flops/fp32_flops:0": 1.5,
    "mem-bw/return_code:1": 1,
    "gpu-copy-bw/gpu0_to_gpu1_write_by_sm_bw:0": 2.5,
    "model-benchmarks:x/pytorch-gpt2/fp32_train_throughput:0": 3,
}
TEXTS = {
    "nvbandwidth text": test_nvbandwidth.TEXT,
    "nvbandwidth": json.dumps(_NVBANDWIDTH, indent=1),
    "superbench": "\n".join(json.dumps(_SUPERBENCH | {"node": f"n{n}"}) for n in range(4)),
    "gpu-burn": test_gpu_burn.LIST + test_gpu_burn.START + test_gpu_burn.BURN + test_gpu_burn.VERDICT,
    "nvprof": test_profilers.STUDY,
    "ncu": test_profilers.DETAILS + "".join(test_profilers.metric(n, "Duration", "us", "1,024.5") for n in range(5)),
}


def _cut(text: str, any_: random.Random) -> str:
    return text[: any_.randrange(len(text))]


def _without_begin(text: str, any_: random.Random) -> str:
    return text[any_.randrange(len(text)) :]


def _without_a_line(text: str, any_: random.Random) -> str:
    lines = text.split("\n")
    del lines[any_.randrange(len(lines))]
    return "\n".join(lines)


def _lines_exchanged(text: str, any_: random.Random) -> str:
    lines = text.split("\n")
    any_.shuffle(lines)
    return "\n".join(lines)


def _another_letter(text: str, any_: random.Random) -> str:
    at = any_.randrange(len(text))
    return text[:at] + any_.choice('"{}[],:-x9\x00\r\n\ufffd(/%') + text[at + 1 :]


def _another_number(text: str, any_: random.Random) -> str:
    numbers = list(re.finditer(r"-?\d+(?:\.\d+)?", text))
    found = any_.choice(numbers)
    new = any_.choice(
        ["nan", "-1", "1e400", "-1e9", "", "99999999999999999999999", "0", "null", "[]", "{}", '"x"', "true"]
    )
    return text[: found.start()] + new + text[found.end() :]


def _twice(text: str, any_: random.Random) -> str:
    return text + "\n" + _cut(text, any_)


DAMAGES: tuple[Callable[[str, random.Random], str], ...] = (
    _cut, _without_begin, _without_a_line, _lines_exchanged, _another_letter, _another_number, _twice,
)  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_a_damaged_file_is_read_or_refused_in_a_sentence(tmp_path: Path, name: str) -> None:
    path, any_ = tmp_path / "a.txt", random.Random(name)
    for number in range(count(140, short=7)):
        damage = DAMAGES[number % len(DAMAGES)]
        text = damage(TEXTS[name], any_)
        path.write_text(text, encoding="utf-8", newline="")
        _read(path, name, damage.__name__)


def _read(path: Path, name: str, damage: str) -> None:
    said = ""
    try:
        found = read_file(path, Options(node="n1", gpu="g"))
    except InputError as error:
        said = str(error)
    assert "\n" not in said, (name, damage)
    if not said and found.report.format == name.split(" ")[0]:
        times = found.frame["value"].drop_nulls()
        assert (times > 0).all(), (name, damage)
        failed: list[Any] = found.frame.filter(found.frame["value"].is_null())["status"].to_list()
        assert "ok" not in failed, (name, damage)


@pytest.mark.parametrize(
    "text",
    [
        '{"nvbandwidth": ' + "[" * 100_000,
        '{"nvbandwidth": {"testcases": 5}}',
        json.dumps({"nvbandwidth": _NVBANDWIDTH["nvbandwidth"] | {"GPU Device list": 5}}),
        '{"gemm-flops/fp32_flops:0": ' + "[" * 100_000,
        '{\n"gemm-flops/fp32_flops:0": ' + "[" * 100_000,
        '{"gemm-flops/fp32_flops:0": 1' + "0" * 400 + "}",
    ],
    ids=["endless", "no tests", "no GPUs", "endless results", "endless document", "a number beyond all"],
)
def test_json_of_another_shape_is_read_or_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    _read(path, "json", text[:30])
