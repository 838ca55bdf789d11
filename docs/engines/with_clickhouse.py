"""Three questions about a store, asked of ClickHouse; the answers are in `answers`. Run beside the store.

pip install chdb                                    # ClickHouse without a server
cp readings.sql p95.sql hours.sql runs.sql HERE
whorl store files --store fleet > files.txt
python with_clickhouse.py list      # or delta, iceberg, after whorl store register --delta, --iceberg

The statements are those of a server too. A server reads files only below its `user_files_path`: mount the store there.
"""

import sys
from pathlib import Path

from chdb.session import Session

session, here = Session(), Path.cwd()
session.query("set session_timezone = 'UTC'")
for table, pattern in {"telemetry": "**/*_*", "late": "**/*_*", "runs": "*"}.items():
    source = f"""file('{here}/fleet/{table}/{pattern}.parquet', Parquet)
        where _path in (select line from file('{here}/files.txt', LineAsString)) settings use_hive_partitioning = 0"""
    if sys.argv[1] == "delta":
        source = f"deltaLakeLocal('{here}/fleet/{table}')"
    elif sys.argv[1] == "iceberg":
        source = f"icebergLocal('{here}/fleet/iceberg/{table}')"
    session.query(f"create view {table} as select * from {source}")

readings = Path("readings.sql").read_text()
exists = readings[readings.index("where not exists") : readings.index("\n    union all")]
is_not_late = "where (cluster, gpu, ts) not in (select cluster, gpu, ts from newest)"  # takes a tenth of the time
session.query("create view readings as " + readings.replace(exists, is_not_late))
texts = {name: Path(f"{name}.sql").read_text() for name in ("p95", "hours", "runs")}
p95_w = "percentile_cont(0.95) within group (order by board_mw)"
exact = "quantileExactInclusive(0.95)(board_mw)"
answers = {name: session.query(text.replace(p95_w, exact), "JSONCompact") for name, text in texts.items()}
print(answers["p95"])
