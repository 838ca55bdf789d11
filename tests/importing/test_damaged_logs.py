"""Damaged files of every kind: read as far as they go, each row accounted for, or refused in one sentence."""

from __future__ import annotations

import json
import random
from pathlib import Path

from whorl.errors import InputError
from whorl.store.importing import Options, Parsed, read_file
from whorl.tests.exporter import Exported, page, usual
from whorl.tests.importing import logs, test_gpu_burn, test_nvbandwidth, test_profilers, test_superbench
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
UUID = "GPU-0000000{}-1111-2222-3333-444444444444"
GARBAGE = (b"\n", b"#", b",", b"\x00", b"9" * 30, b"-", b" ", b'"', b"<", b"&", b"1e400", b"nan", b"\xff\xfe", b"\r",
           b"GPU 0", b"#Entity", b"# gpu", b"{", b"}")  # fmt: skip
LOGS = {
    "dcgmi": logs.left("POWER TOTEC GPUTL XIDER", *[f"GPU {s % 2}, 6{s}.25, {s}, {s}, 79" for s in range(30)]),
    "old dcgmi": logs.right(
        "    GPU 0  0.457  0.442  250.1", "  GPU-I 0  0.534  0.516  250.1", "    GPU 0  0.8  0.1  25"
    ),
    "dmon": logs.SMI_ALL,
    "old dmon": logs.SMI_OLD,
    "gpm": logs.SMI_GPM,
    "csv": logs.SMI_CSV,
    "xml": logs.smi(logs.gpu(0, logs.MIG, logs.OLD), logs.gpu(1, logs.NEW)) + logs.smi(logs.gpu(0, logs.MIDDLE)),
    "page": page([Exported(0, usual()), Exported(1, usual(), instance=("1g.10gb", "3"))], "4.x"),
    "federated": page([Exported(gpu, usual(), stamp_ms=1_763_632_800_000 + gpu) for gpu in (0, 1)], "federated"),
    "table of runs": "exp,uuid,ts,perf,perf_s,freq,pwr\n"
    + "".join(
        f"sgemm,{UUID.format(s % 3)},{1_600_000_000 + s},{2400 + s},{2.4 + s / 1000},{1380 + s},{290.5 - s}\n"
        for s in range(20)
    ),
    "stream": "timestamp, index, uuid, power.draw [W], clocks.sm [MHz], utilization.gpu [%]\n"
    + "".join(
        f"2026/11/20 10:00:{s:02d}.12{s % 4}, {s % 4}, {UUID.format(s % 4)}, {60.5 + s} W, {1200 + s} MHz, {s} %\n"
        for s in range(40)
    ),
    "omnistat": logs.omnistat(logs.SERIES[:4], [f"2025-01-01 10:00:0{s},98.0,97.0,3.0,4.0" for s in range(5)]),
}
RESULTS = {
    "nvbandwidth text": test_nvbandwidth.TEXT,
    "nvbandwidth": json.dumps(_NVBANDWIDTH, indent=1),
    "superbench": "\n".join(json.dumps(_SUPERBENCH | {"node": f"n{n}"}) for n in range(4)),
    "gpu-burn": test_gpu_burn.LIST + test_gpu_burn.START + test_gpu_burn.BURN + test_gpu_burn.VERDICT,
    "nvprof": test_profilers.STUDY,
    "ncu": test_profilers.DETAILS + "".join(test_profilers.metric(n, "Duration", "us", "1,024.5") for n in range(5)),
}


def damaged(text: str, r: random.Random) -> bytes:
    """The text with one to thirty of: bytes changed, cut out, put in or repeated; lines lost or exchanged."""
    data = text.encode()
    for _ in range(r.choice((1, 1, 2, 5, 30))):
        here, there = r.randrange(len(data) + 1), r.randrange(len(data) + 1)
        lines = data.split(b"\n")
        one, other = r.randrange(len(lines)), r.randrange(len(lines))
        match r.randrange(6):
            case 0:
                data = data[:here] + bytes([r.randrange(256)]) + data[here + 1 :]
            case 1:
                data = data[:here] + data[here + r.choice((1, 5, 50, 500)) :]
            case 2:
                data = data[:here] + r.choice(GARBAGE) + data[here:]
            case 3:
                data = data[:here] + data[there : there + r.choice((5, 60, 400))] + data[here:]
            case 4:
                lines[one], lines[other] = lines[other], lines[one]
                data = b"\n".join(lines)
            case _:
                data = b"\n".join(lines[:one] + lines[one + 1 :])
    return data


def read(path: Path, name: str) -> Parsed | None:
    """What is read of a file; None where it is refused in one sentence."""
    options = Options(node="n1", at="2026-11-20 10:00:00", every=1.0)
    said = ""
    try:
        found = read_file(path, Options(node="n1", gpu="g") if name in RESULTS else options)
    except InputError as error:
        said = str(error)
    assert "\n" not in said, name
    if said:
        return None
    total = found.report.total
    assert total.rows == total.kept + total.duplicates + total.refused, name
    assert not found.frame["gpu"].str.contains("(?i)lost|reset|err").any(), name
    if name in RESULTS and found.report.format == name.split(" ")[0]:
        assert (found.frame["value"].drop_nulls() > 0).all(), name
        assert "ok" not in found.frame.filter(found.frame["value"].is_null())["status"].to_list(), name
    return found


def test_damaged_files(tmp_path: Path) -> None:
    r, path = random.Random(1), tmp_path / "log"
    tries, kept = count(1500, short=40), 0
    for number in range(tries):
        texts = RESULTS if number % 2 else LOGS
        name = r.choice(list(texts))
        path.write_bytes(damaged(texts[name], r))
        kept += read(path, name) is not None
    assert tries / 10 < kept < tries * 0.9


def test_json_of_another_shape_is_read_or_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for text in (
        '{"nvbandwidth": ' + "[" * 100_000,
        '{"nvbandwidth": {"testcases": 5}}',
        json.dumps({"nvbandwidth": _NVBANDWIDTH["nvbandwidth"] | {"GPU Device list": 5}}),
        '{"gemm-flops/fp32_flops:0": ' + "[" * 100_000,
        '{\n"gemm-flops/fp32_flops:0": ' + "[" * 100_000,
        '{"gemm-flops/fp32_flops:0": 1' + "0" * 400 + "}",
    ):
        path.write_text(text)
        read(path, "nvbandwidth")
