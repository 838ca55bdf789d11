"""What questions about telemetry cost in engines that read a store's files as docs/store.md says. Prints JSON.

    python benchmarks/other_engines.py --python chdb=CHDB/bin/python --python "duckdb 1.5=DUCKDB/bin/python" \\
        --python spark=SPARK/bin/python > benchmarks/results/other_engines.json

whorl        `Store.sql`, and its view `run_windows`
polars, duckdb, chdb, spark: the scripts of the page with a list of files, each in the Python that `--python` names
             (those of whorl where it names none; chdb and spark are left out then); Spark is `local[2]`
plain join   Spark, with `run_windows.sql` less its stretches of time: each reading meets all runs of its GPU. It takes
             long: only where `--python "plain join=SPARK/bin/python"` asks for it

The store is made up (`telemetry_windows`: GPUs at 1 Hz for an hour, 100 runs of 30 s on each). Every question is a
process of its own with two threads: CPU seconds of the process with its children, from start to end, and the largest
resident memory of the largest process. `start` is the process without a question; `cpu_s` of a question is less the
median of that. `difference` is the largest relative one between sums over the answer's columns and those of whorl.
Spark is
measured once. On a machine with other work CPU seconds say more than wall seconds. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[1] / "docs" / "engines.md"
QUESTIONS = ("start", "p95", "hours")
WINDOWS = ("run_windows",)
ENGINES = {
    "whorl": (*QUESTIONS, *WINDOWS), "polars": QUESTIONS, "duckdb": QUESTIONS, "duckdb 1.5": QUESTIONS,
    "chdb": QUESTIONS, "spark": (*QUESTIONS, *WINDOWS), "plain join": ("start", *WINDOWS),
}  # fmt: skip
WITH_WHORL = ("whorl", "polars", "duckdb")
SPARK = (
    "--master", "local[2]", "--driver-memory", "6g", "--conf", "spark.ui.enabled=false",
    "--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1",
)  # fmt: skip
JAVA = ("spark", "plain join")
STRETCH = "and floor(r.ts_us / r.us) = p.part"


def saved_files(page: str) -> dict[str, str]:
    """The files that a page says to save: their contents by name."""
    return dict(re.findall(r"Save this as `([\w.]+)`[^\n]*:\n\n```\w+\n(.*?)^```", page, re.M | re.S))


def sums(rows: list[Any]) -> list[float]:
    """The number of rows, and the sum of each column that has numbers."""
    columns = [[float(v) for v in column if _is_number(v)] for column in zip(*rows, strict=True)]
    return [float(len(rows)), *(sum(column) for column in columns if column)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and value.isdecimal())


def answer(engine: str, question: str) -> list[float]:
    """The sums of an answer, by the scripts in this folder; run by the engine's Python, where whorl need not be."""
    if engine == "whorl":
        return sums(_of_whorl(question))
    kind = {"duckdb 1.5": "duckdb", "chdb": "clickhouse", "plain join": "spark"}.get(engine, engine)
    names: dict[str, Any] = {}
    exec(Path(f"{kind}_list.py").read_text(), names)
    if question == "start":
        return []
    script = Path(f"{kind}_ask.py").read_text()
    script = script[: script.rindex("\n", 0, -1)]  # less its last line, which prints an answer
    exec(re.sub(r'in \("p95", .*\)', f'in ("{question}",)', script), names)
    reply = names["answers"][question]
    rows: dict[str, Callable[[], Any]] = {
        "polars": lambda: reply.collect(engine="streaming").rows(),
        "duckdb": lambda: reply.fetchall(),
        "clickhouse": lambda: json.loads(reply.bytes())["data"],
        "spark": lambda: [tuple(row) for row in reply.collect()],
    }
    return sums(rows[kind]())


def _of_whorl(question: str) -> list[tuple[Any, ...]]:
    from whorl.store import Store

    store = Store("fleet")
    if question == "start":
        return [(row["n"],) for row in store.sql("select 1 as n").to_pylist()]
    columns = "run_id, cluster, gpu, began, ended, n, power_mean_w, power_median_w, power_p95_w, energy_j, energy_from"
    query = f"select {columns}, sm_clock_mean_mhz, temperature_max_c from run_windows"
    if question != "run_windows":
        from whorl.store.metrics import power_is_trusted

        power = "coalesce(power_instant_mw, power_mw)"
        counts = f"case when {power} between 500 and 5e6 and {power_is_trusted()} then {power} end"
        text = Path(f"{question}.sql").read_text()
        query = f"with readings as (select *, {counts} as board_mw from telemetry) {text}"
    table = store.sql(query).table
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def peak_mb(process: int) -> int:
    """The largest resident memory of a process, MiB. What wait4 tells counts what its parent had, too."""
    [line] = re.findall(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{process}/status").read_text(), re.M)
    return int(line) // 1024


def measure(python: str, engine: str, question: str, folder: Path) -> dict[str, Any]:
    """CPU seconds, largest resident memory and the sums of the answer of one process."""
    command = [python]
    if engine in JAVA:
        command = [str(Path(python).parent / "spark-submit"), *SPARK]
    environment = os.environ | {
        "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1", "POLARS_MAX_THREADS": "2", "OMP_NUM_THREADS": "2",
    }  # fmt: skip
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        command += [str(Path(__file__).resolve()), "--engine", engine, "--question", question]
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            errors.seek(0)
            raise SystemExit(f"{engine}, {question}: {errors.read().decode()[-2000:]}")
        out.seek(0)
        answered = json.loads(out.read().splitlines()[-1])
    cpu_s = round(usage.ru_utime + usage.ru_stime, 2)
    return {"engine": engine, "question": question, "cpu_s": cpu_s, **answered}


def prepare(folder: Path, gpus: int, seconds: int) -> None:
    """The store, the page's files and the lists of files in a folder."""
    from whorl.benchmarks.telemetry_windows import make

    make(folder / "fleet", gpus, seconds, "short")
    for name, content in saved_files(PAGE.read_text()).items():
        (folder / name).write_text(content)
    for name, form in (("files.txt", []), ("files.json", ["--json"])):
        command = [sys.executable, "-m", "whorl", "store", "files", "--store", "fleet", *form]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        (folder / name).write_text(done.stdout)


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each engine and question: medians over `n` processes."""
    right = {row["question"]: row["sums"] for row in rows if row["engine"] == "whorl"}

    def middle(engine: str, question: str, figure: str) -> float:
        return float(
            statistics.median(row[figure] for row in rows if (row["engine"], row["question"]) == (engine, question))
        )

    out = []
    for engine, question in dict.fromkeys((row["engine"], row["question"]) for row in rows):
        processes = [row for row in rows if (row["engine"], row["question"]) == (engine, question)]
        start_s = middle(engine, "start", "cpu_s")
        line = {
            "engine": engine,
            "question": question,
            "n": len(processes),
            "peak_mb": middle(engine, question, "peak_mb"),
        }
        if question == "start":
            out.append(line | {"cpu_s": round(start_s, 2)})
            continue
        pairs = list(zip(processes[0]["sums"], right[question], strict=True))
        difference = max(abs(a - b) / max(abs(b), 1.0) for a, b in pairs)
        out.append(line | {"cpu_s": round(middle(engine, question, "cpu_s") - start_s, 2), "difference": difference})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=1500)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PYTHON")
    parser.add_argument("--engine", choices=ENGINES, help=argparse.SUPPRESS)
    parser.add_argument("--question", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        answered = {"sums": answer(options.engine, options.question)}
        processes = [os.getpid(), *([os.getppid()] if options.engine in JAVA else [])]  # Spark's own is the parent
        print(json.dumps(answered | {"peak_mb": max(peak_mb(process) for process in processes)}))
        return
    from whorl.benchmarks.machine import machine
    from whorl.benchmarks.reporting import as_json, say

    pythons = dict.fromkeys(WITH_WHORL, sys.executable) | dict(choice.split("=", 1) for choice in options.python)
    before, rows = machine("polars", "duckdb", "pyarrow"), []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        say("making the store")
        prepare(folder, options.gpus, options.seconds)
        plain = folder / "plain"
        plain.mkdir()
        for path in folder.glob("*.*"):
            text = path.read_text().replace(STRETCH, "") if path.suffix == ".sql" else path.read_text()
            text = text.replace("explode(sequence(floor(began_us / us), floor(ended_us / us)))", "0")
            (plain / path.name).write_text(text)
        for number in range(options.repeats):
            for engine in (engine for engine in ENGINES if engine in pythons):
                for question in ENGINES[engine] if number == 0 or engine not in JAVA else ():
                    say(f"{engine}, {question}, {number + 1} of {options.repeats}")
                    run_in = plain if engine == "plain join" else folder
                    rows.append(measure(pythons[engine], engine, question, run_in))
                    say(json.dumps(rows[-1]))
    size = {"rows": options.gpus * options.seconds, "gpus": options.gpus, "runs": 100 * options.gpus}
    print(as_json({"benchmark": "other_engines", "threads": 2, **size, "compared": compared(rows), "machine": before}))


if __name__ == "__main__":
    main()
