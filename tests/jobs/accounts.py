"""Output of `sacct -P` for tests, made up from the manuals of Slurm 22.05 to 25.11: no site's accounts are copied here.

A test on the real Slurm 22.05 is tests/slurm/test_accounting.py.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from whorl.store import Store
from whorl.store.schema import arrow_rows

T0 = 1_793_500_000  # 2026-11-01 00:26:40
COLUMNS = (
    "JobID", "JobIDRaw", "Cluster", "User", "UID", "Account", "Partition", "QOS", "State", "ExitCode", "NodeList",
    "NNodes", "Submit", "Eligible", "Start", "End", "ElapsedRaw", "TimelimitRaw", "ReqTRES", "AllocTRES",
    "ConsumedEnergyRaw",
)  # fmt: skip
NEWER = (*COLUMNS, "Restarts", "Planned", "Licenses")  # a field that whorl reads, and two that it does not


def job(number: int, gpus: int = 4, nodes: str = "n01", count: int = 1, **options: Any) -> dict[str, str]:
    """A job of `gpus` GPUs that ran from T0 + 100 to T0 + 700."""
    gres = f"gres/gpu:v100={gpus},gres/gpu={gpus}," if gpus else ""
    row = {
        "JobID": number, "JobIDRaw": number, "Cluster": "whorl", "User": "alice", "UID": 1001, "Account": "physics",
        "Partition": "batch", "QOS": "normal", "State": "COMPLETED", "ExitCode": "0:0", "NodeList": nodes,
        "NNodes": count, "Submit": T0, "Eligible": T0, "Start": T0 + 100, "End": T0 + 700, "ElapsedRaw": 600,
        "TimelimitRaw": 60, "ReqTRES": f"cpu=1,gres/gpu={gpus},node={count}",
        "AllocTRES": f"billing=8,cpu=8,{gres}mem=4000M,node={count}", "ConsumedEnergyRaw": 0, "Restarts": 0,
        "Planned": "00:01:40", "Licenses": "",
    }  # fmt: skip
    return {key: str(value) for key, value in (row | options).items()}


def text(*rows: dict[str, str], columns: tuple[str, ...] = COLUMNS, delimiter: str = "|") -> str:
    lines = [columns, *([row[name] for name in columns] for row in rows)]
    return "".join(delimiter.join(line) + "\n" for line in lines)


def saved(path: Path, *rows: dict[str, str], **options: Any) -> Path:
    path.write_text(text(*rows, **options))
    return path


def utc(seconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).replace(tzinfo=None)


def know_gpus(store: Store, *nodes: str, each: int = 4, seen: int = T0 - 86_400, **options: Any) -> None:
    """The store knows the GPUs GPU-NODE-SLOT of some nodes since `seen`."""
    rows: dict[str, Any] = {
        "gpu": [f"GPU-{node}-{slot}" for node in nodes for slot in range(each)],
        "node": [node for node in nodes for _ in range(each)],
        "slot": [slot for _ in nodes for slot in range(each)],
    }
    number = len(rows["gpu"])
    rows |= {"cluster": ["whorl"] * number, "uuid": rows["gpu"], "first_seen": [utc(seen)] * number}
    rows |= {key: [value] * number for key, value in options.items()}
    store.append({"gpus": arrow_rows("gpus", rows)}, f"gpus-{nodes[0]}-{len(nodes)}-{seen}")


def now(store: Store, columns: str = "job_id, node, gpu", where: str = "true") -> list[tuple[Any, ...]]:
    """Some columns of `jobs_now`."""
    answer = store.sql(f"select {columns} from jobs_now where {where} order by all").to_pylist()
    return [tuple(row.values()) for row in answer]
