"""Damaged logs of other monitors: no traceback, one sentence for each refusal, every row accounted for."""

from __future__ import annotations

import random
from pathlib import Path

from whorl.errors import InputError
from whorl.store.importing import Options, read_file
from whorl.tests.exporter import Exported, page, usual
from whorl.tests.importing import logs
from whorl.tests.sizes import count

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
    "omnistat": logs.omnistat(logs.SERIES[:4], [f"2025-01-01 10:00:0{s},98.0,97.0,3.0,4.0" for s in range(5)]),
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


def test_damaged_logs(tmp_path: Path) -> None:
    r, path = random.Random(1), tmp_path / "log"
    options = Options(node="n1", at="2026-11-20 10:00:00", every=1.0)
    kept, sentences = 0, []
    tries = count(160, short=24)
    for _ in range(tries):
        path.write_bytes(damaged(LOGS[r.choice(list(LOGS))], r))
        try:
            total = read_file(path, options).report.total
        except InputError as error:
            sentences.append(str(error))
        else:
            assert total.rows == total.kept + total.duplicates + total.refused
            kept += 1
    assert not [sentence for sentence in sentences if "\n" in sentence]
    assert min(kept, len(sentences)) > tries / 10
