"""Memory that a process gives back to the system."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import re
import pyarrow as pa, pyarrow.parquet as pq
from whorl.store.system.memory import give_back_code

def mapped():
    return int(re.search(r"RssFile:\\s*(\\d+)", open("/proc/self/status").read())[1])

def work():
    rows = pa.table({"gpu": ["b", "a"], "power_mw": [1, 2]}).sort_by("gpu")
    file = pa.BufferOutputStream()
    pq.write_table(rows, file, compression="zstd")
    return pq.read_table(pa.BufferReader(file.getvalue())).to_pylist()

before, expected = mapped(), work()
give_back_code()
after = mapped()
assert work() == expected == [{"gpu": "a", "power_mw": 2}, {"gpu": "b", "power_mw": 1}]
print(before, after)
"""


def test_a_process_goes_on_after_it_gave_its_code_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert after < 0.75 * before
