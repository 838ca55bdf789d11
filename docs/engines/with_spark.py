"""Three questions about a store, asked of Spark; the answers are in `answers`. Run in the folder that has the store.

cp readings.sql p95.sql hours.sql runs.sql run_windows.sql HERE
whorl store files --store fleet --json > files.json
spark-submit --master spark://HOST:7077 with_spark.py list      # or iceberg, after whorl store register --iceberg

On one machine the master is `local[8]`. Where the default file system of your Spark is HDFS or S3, put `file://` before
each path. For Iceberg, start Spark with `--packages org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.10.2`, or what
fits your Spark. `whorl sql --store fleet --unsafe "copy (from jobs_now) to 'jobs_now.parquet'"` adds windows of jobs.
"""

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

spark = SparkSession.builder.config("spark.sql.session.timeZone", "UTC").getOrCreate()  # times of a store are UTC
if sys.argv[1] == "list":
    files = json.loads(Path("files.json").read_text())["tables"]
    for table in ("telemetry", "runs"):
        spark.read.parquet(*files[table]).createOrReplaceTempView(table)
    if len(files["late"]) > 1:  # Spark passes over the first, _schema.parquet
        spark.read.parquet(*files["late"]).createOrReplaceTempView("late")
    else:
        spark.sql("select *, 0 as written from telemetry where false").createOrReplaceTempView("late")
else:
    for table in ("late", "telemetry", "runs"):
        metadata = Path(f"fleet/iceberg/{table}/metadata").absolute()
        newest = (metadata / "version-hint.text").read_text()
        spark.read.format("iceberg").load(f"{metadata}/{newest}.metadata.json").createOrReplaceTempView(table)

spark.sql("create temporary view readings as " + Path("readings.sql").read_text())
answers = {name: spark.sql(Path(f"{name}.sql").read_text()) for name in ("p95", "hours", "runs", "run_windows")}
if Path("jobs_now.parquet").exists():  # jobs that still run have no end, and are left out
    jobs = spark.read.parquet("jobs_now.parquet").where("job_id is not null")
    columns = ("concat(allocation, ' ', gpu) as run_id", "cluster", "gpu", "began", "ended")
    jobs.selectExpr(*columns).createOrReplaceTempView("runs")
    answers["job_windows"] = spark.sql(Path("run_windows.sql").read_text())
answers["p95"].show()
