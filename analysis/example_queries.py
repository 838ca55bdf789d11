"""Queries to begin with: each runs on every store, and a person changes it to what they look for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    """A query, and how its answer is drawn where a figure says more than rows: `chart` of `dashboards.figures`."""

    title: str
    query: str
    chart: str | None = None
    x: str | None = None
    y: str | None = None
    colour: str | None = None


EXAMPLES = (
    Example(
        "GPUs: where they are, driver, firmware",
        "select cluster, name, node, cabinet, slot, model, driver, vbios, first_seen\n"
        "from gpus_now\norder by cluster, name",
    ),
    Example(
        "GPUs: how many of each model, driver and firmware",
        "select cluster, model, driver, vbios, count(*) as gpus, count(distinct node) as nodes\n"
        "from gpus_now\nwhere mig_profile is null\ngroup by all\norder by gpus desc",
    ),
    Example(
        "What was found, worst first",
        "select cluster, name, level, kind, state, effect_pct, low_pct, high_pct, n, causes,\n       action\n"
        "from verdicts_now\norder by cluster, place",
    ),
    Example(
        "Workloads and figures: how many runs and results",
        "select cluster, workload, figure, unit, count(distinct run_id) as runs, count(*) as results,\n"
        "       min(value) as lowest, median(value) as median, max(value) as highest\n"
        "from measurements\ngroup by all\norder by all",
    ),
    Example(
        "Slowest GPUs of each workload",
        "select *\nfrom (select cluster, workload, name, median(value) as time, unit, count(*) as n\n"
        "      from measurements\n      where figure = 'time'\n      group by all)\n"
        "qualify row_number() over (partition by cluster, workload order by time desc) <= 10\n"
        "order by cluster, workload, time desc",
    ),
    Example(
        "How the times of a workload spread, by model",
        "select name, model, value as time\nfrom measurements\n"
        "where figure = 'time' and workload = (select mode(workload) from runs)",
        "histogram", "time", None, "model",
    ),
    Example(
        "Time against power, of the runs of a workload",
        "select name, power_w, value as time, cluster\nfrom measurements\n"
        "where figure = 'time' and power_w is not null\n"
        "  and workload = (select mode(workload) from runs where power_w is not null)",
        "scatter", "power_w", "time", "cluster",
    ),
    Example(
        "Runs of each day, by how they ended",
        "select date_trunc('day', began) as day, coalesce(status, 'not known') as status, count(*) as runs\n"
        "from runs\nwhere began is not null\ngroup by all\norder by day",
        "bar", "day", "runs", "status",
    ),
    Example(
        "Newest reading of each GPU",
        "select cluster, name, ts, power_mw / 1e3 as watt, temperature_c, sm_clock_mhz, utilization\n"
        "from latest left join gpus_now using (cluster, gpu)\norder by watt desc",
    ),
    Example(
        "Mean power of a GPU, minute by minute in the last hour",
        "select time_bucket(interval '1 minute', ts) as ts, cluster, avg(power_mw) / 1e3 as watt,\n"
        "       count(*) as readings\n"
        "from telemetry\nwhere ts > (select max(ts) from telemetry) - interval 1 hour\n"
        "group by all\norder by 1",
        "line", "ts", "watt", "cluster",
    ),
    Example(
        "Events, by kind and GPU",
        "select kind, code, cluster, coalesce(name, gpu) as name, count(*) as events,\n"
        "       min(ts) as first, max(ts) as last\n"
        "from events left join gpus_now using (cluster, gpu)\ngroup by all\norder by events desc",
    ),
    Example(
        "GPU hours of each user",
        'select cluster, "user", count(distinct allocation) as jobs,\n'
        "       sum(share * epoch(ended - began)) / 3600 as gpu_hours\n"
        "from jobs_on_gpu\nwhere ended is not null\ngroup by all\norder by gpu_hours desc",
    ),
)  # fmt: skip
