"""Three questions about a store, asked of Polars; the answers are in `answers`. Run in the folder that has the store.

whorl store files --store fleet --json > files.json
python with_polars.py list      # or delta, iceberg, after whorl store register --delta, --iceberg

Where whorl is installed beside Polars, Store("fleet").scan("telemetry") has late rows in place, and journals.
"""

import json
import sys
from pathlib import Path

import polars as pl

TABLES = ("late", "telemetry", "runs")
if sys.argv[1] == "list":
    files = json.loads(Path("files.json").read_text())["tables"]
    late, telemetry, runs = (pl.scan_parquet(files[table], hive_partitioning=False) for table in TABLES)
elif sys.argv[1] == "delta":
    late, telemetry, runs = (pl.scan_delta(f"fleet/{table}") for table in TABLES)
else:
    late, telemetry, runs = (pl.scan_iceberg(f"fleet/iceberg/{table}") for table in TABLES)

KEY = ["cluster", "gpu", "ts"]
COLUMNS = [*KEY, "quality", "power_instant_mw", "power_mw", "energy_mj", "sm_clock_mhz", "temperature_c"]
newest = late.sort("written").unique(KEY, keep="last", maintain_order=True).select(COLUMNS)
power = pl.coalesce("power_instant_mw", "power_mw")
is_marked = pl.col("quality").fill_null("").str.contains("power_stuck|power_zero")
board_mw = pl.when(power.is_between(500, 5_000_000) & ~is_marked).then(power)
others = telemetry.select(COLUMNS).join(newest, on=KEY, how="anti")
readings = pl.concat([others, newest]).with_columns(board_mw=board_mw)

p95_w = pl.col("board_mw").quantile(0.95, "linear") / 1000
of_days = readings.drop_nulls("board_mw").group_by("cluster", "gpu", day=pl.col("ts").dt.date())
of_hours = readings.group_by(hour=pl.col("ts").dt.truncate("1h"))
hottest_c, sum_w = pl.col("temperature_c").max(), pl.col("board_mw").sum() / 1000
of_gpu = runs.filter(gpu="GPU-5a3c7e10").sort("began", "run_id")
answers = {
    "p95": of_days.agg(n=pl.len(), p95_w=p95_w).sort("cluster", "gpu", "day"),
    "hours": of_hours.agg(n=pl.len(), sum_w=sum_w, hottest_c=hottest_c).sort("hour"),
    "runs": of_gpu.select("run_id", "workload", "began", "ended", "status"),
}
print(answers["p95"].collect(engine="streaming"))
