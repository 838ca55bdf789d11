"""What an engine reads in Parquet files, and what a script of docs/engines answers: run by the Python of the
engine's own environment, where whorl is not.

    python engine_reader.py pyarrow|polars|duckdb|chdb|spark < QUESTIONS > ANSWERS
    python engine_reader.py ENGINE SCRIPT list|delta|iceberg > ANSWERS

A question is {"files": [...], "whole": [...], "real": [...], "times": [...], "others": [...]} of a table: its columns
by what they hold. Its answer is {"rows": N, "columns": {NAME: [COUNT, SUM]}}; of times COUNT and the lowest (us since
1970), of others only COUNT. A script leaves its answers in `answers`: those are printed as rows by name.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = ("whole", "real", "times", "others")


def columns(question: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, kind) for kind in KINDS for name in question[kind]]


def with_pyarrow(question: dict[str, Any]) -> tuple[int, list[Any]]:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    table = ds.dataset(question["files"], format="parquet").to_table()
    values: list[Any] = []
    for name, kind in columns(question):
        values.append(pc.count(table[name]).as_py())
        if kind == "times":
            values.append(pc.min(table[name].cast(pa.timestamp("us")).cast(pa.int64())).as_py())
        elif kind != "others":
            values.append(pc.sum(table[name]).as_py())
    return len(table), values


def with_polars(question: dict[str, Any]) -> tuple[int, list[Any]]:
    import polars as pl

    selected = [pl.len().alias("rows")]
    for name, kind in columns(question):
        selected.append(pl.col(name).count().alias(f"{name} count"))
        if kind == "times":
            selected.append(pl.col(name).min().dt.epoch("us").alias(f"{name} first"))
        elif kind != "others":
            selected.append(pl.col(name).sum().alias(f"{name} sum"))
    rows, *values = pl.scan_parquet(question["files"], hive_partitioning=False).select(selected).collect().row(0)
    return rows, values


def in_sql(question: dict[str, Any], sums: dict[str, str]) -> str:
    """The columns to select; `sums` says how an engine sums whole and real numbers and finds the first time."""
    selected = ["count(*)"]
    for name, kind in columns(question):
        selected += [f"count({name})"] + ([] if kind == "others" else [sums[kind].format(name)])
    return ", ".join(selected)


def with_duckdb(question: dict[str, Any]) -> tuple[int, list[Any]]:
    import duckdb

    files = ", ".join(f"'{path}'" for path in question["files"])
    sums = {"whole": "sum({})", "real": "sum({})", "times": "epoch_us(min({}))"}
    source = f"read_parquet([{files}], hive_partitioning = false)"
    connection = duckdb.connect()
    ((rows, *values),) = connection.execute(f"select {in_sql(question, sums)} from {source}").fetchall()
    return rows, values


def with_chdb(question: dict[str, Any]) -> tuple[int, list[Any]]:
    import chdb  # type: ignore[import-not-found, unused-ignore]

    sums = {"whole": "sum({})", "real": "sum({})", "times": "toUnixTimestamp64Micro(min({}))"}
    files = " union all ".join(f"select * from file('{path}', Parquet)" for path in question["files"])
    query = f"select {in_sql(question, sums)} from ({files}) settings use_hive_partitioning = 0"
    answer = chdb.query(query, "JSONCompact")
    (row,) = json.loads(answer.bytes())["data"]
    rows, *values = [value if value is None or isinstance(value, float) else exact(value) for value in row]
    return int(rows or 0), values


def exact(value: Any) -> int | float:
    """A number that may stand in quotes, as those of 64 bits do."""
    return float(value) if "." in str(value) or "e" in str(value) else int(value)


def with_spark(question: dict[str, Any]) -> tuple[int, list[Any]]:
    from pyspark.sql import SparkSession  # type: ignore[import-not-found, unused-ignore]

    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.read.parquet(*question["files"]).createOrReplaceTempView("asked")
    zone = "cast(cast(min({}) as timestamp) as double)"
    sums = {"whole": "sum({})", "real": "sum({})", "times": f"cast(round({zone} * 1000000) as bigint)"}
    rows, *values = session.sql(f"select {in_sql(question, sums)} from asked").first()
    return rows, values


def answer(engine: str, question: dict[str, Any]) -> dict[str, Any]:
    ask = {
        "pyarrow": with_pyarrow, "polars": with_polars, "duckdb": with_duckdb, "chdb": with_chdb, "spark": with_spark,
    }[engine]  # fmt: skip
    rows, values = ask(question)
    values = [value if value is None or isinstance(value, float) else int(value) for value in values]
    answers: dict[str, list[Any]] = {}
    for name, kind in columns(question):
        answers[name], values = values[: 2 - (kind == "others")], values[2 - (kind == "others") :]
    return {"rows": rows, "columns": answers}


def answers_of(engine: str, script: str, how: str) -> dict[str, list[Any]]:
    """The rows of each answer that a script leaves, which runs in the present folder."""
    names: dict[str, Any] = {}
    arguments, sys.argv = sys.argv, [script, how]
    exec(compile(Path(script).read_text(), script, "exec"), names)
    sys.argv = arguments
    rows: dict[str, Callable[[Any], Any]] = {
        "polars": lambda frame: frame.collect().rows(),
        "duckdb": lambda relation: relation.fetchall(),
        "chdb": lambda reply: json.loads(reply.bytes())["data"],
        "spark": lambda frame: [tuple(row) for row in frame.collect()],
    }
    answers = {name: rows[engine](answer) for name, answer in names["answers"].items()}
    if engine == "spark":
        names["spark"].stop()
    return answers


def main() -> None:
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    out = os.dup(1)
    os.dup2(2, 1)  # what an engine prints is no answer
    if len(sys.argv) == 4:
        os.write(out, json.dumps(answers_of(*sys.argv[1:]), default=str).encode())
        return
    answers = {}
    for table, question in json.load(sys.stdin).items():
        try:
            answers[table] = answer(sys.argv[1], question)
        except Exception as error:
            answers[table] = {"error": f"{type(error).__name__}: {error}"[:400]}
    os.write(out, json.dumps(answers).encode())


if __name__ == "__main__":
    assert Path(__file__).name == "engine_reader.py"
    main()
