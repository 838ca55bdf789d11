"""Three questions about a store, asked of DuckDB; the answers are in `answers`. Run in the folder that has the store.

cp readings.sql p95.sql hours.sql runs.sql HERE
whorl store files --store fleet --json > files.json
python with_duckdb.py list      # or delta, iceberg, after whorl store register --delta, --iceberg
"""

import json
import sys
from pathlib import Path

import duckdb

connection = duckdb.connect()
if sys.argv[1] == "list":
    files = json.loads(Path("files.json").read_text())["tables"]
    for table in ("telemetry", "late", "runs"):
        connection.read_parquet(files[table], hive_partitioning=False).create_view(table)
else:
    extensions = ["avro", "iceberg"] if sys.argv[1] == "iceberg" else ["delta"]
    for extension in extensions:
        connection.execute(f"install {extension}; load {extension}")
    for table in ("late", "telemetry", "runs"):  # late first: a row stays there until telemetry has it
        scan = f"iceberg_scan('fleet/iceberg/{table}')" if sys.argv[1] == "iceberg" else f"delta_scan('fleet/{table}')"
        connection.execute(f"create view {table} as from {scan}")

connection.execute("create view readings as " + Path("readings.sql").read_text())
answers = {name: connection.sql(Path(f"{name}.sql").read_text()) for name in ("p95", "hours", "runs")}
answers["p95"].show()
