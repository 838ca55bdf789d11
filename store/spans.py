"""The table of spans: what parts of an application used, as `jobs/ledger/` counts it; and the view that adds up."""

from __future__ import annotations

from .columns import CLUSTER, Column, Table, View

SPANS = Table(
    "spans",
    "a span: a part of an application's work, and the energy that its GPUs used for it",
    (
        CLUSTER,
        Column("span", "VARCHAR", "", "its identity: that of the process, '-', and a number"),
        Column("parent", "VARCHAR", "", "the span that it is inside of, which may be of another process; NULL: none"),
        Column("within_parent", "BOOLEAN", "", "whether energy_j, low_j and high_j of the parent's row include it"),
        Column("name", "VARCHAR", "", "its name"),
        Column(
            "attributes",
            "MAP(VARCHAR, VARCHAR)",
            "",
            "what else the application said of it, by name; NULL: nothing",
        ),
        Column("job_id", "VARCHAR", "", "the batch job; NULL outside of one"),
        Column("node", "VARCHAR", "", "the host"),
        Column("gpus", "VARCHAR[]", "", "the GPUs, as in `gpus`; NULL where none could be read"),
        Column("began", "TIMESTAMP", "UTC", "when it began"),
        Column("ended", "TIMESTAMP", "UTC", "when it ended"),
        Column(
            "own_j",
            "DOUBLE",
            "J",
            "what it used itself, outside the spans inside it; those of all spans add up. Alone, that of a short span "
            "says little: see low_j and high_j. NULL where nothing was read",
        ),
        Column("energy_j", "DOUBLE", "J", "what it and the spans inside it used; NULL where `reason` says why"),
        Column("low_j", "DOUBLE", "J", "lower end of its 95 % interval"),
        Column("high_j", "DOUBLE", "J", "upper end of it"),
        Column("measured", "DOUBLE", "", "share of its time in which the GPUs were read"),
        Column("method", "VARCHAR", "", "what most of it was read from: 'counter' or 'power'"),
        Column("reason", "VARCHAR", "", "why energy_j is NULL, a code: 'no gpu', 'mostly gaps', 'too short', ..."),
        Column("error", "VARCHAR", "", "class of the exception that ended it; NULL where none did"),
    ),
    sorted_by=("cluster", "began"),
    key=("cluster", "span"),
)

_HEAD = "(s.span = i.top OR NOT s.within_parent)"  # rows whose figures no other row inside the same span includes

SPANS_TOTAL = View(
    "spans_total",
    "a span with all spans inside it, also those of other processes: `spans` is how many, itself included, total_j "
    "their energy, between low_j and high_j. These are NULL where one of them has no energy, and where two processes "
    "counted all of the same GPU at the same time, from their first span to their last (`twice`)",
    "SELECT * FROM (WITH RECURSIVE inside AS (SELECT cluster, span AS top, span FROM spans UNION SELECT i.cluster, "
    "i.top, s.span FROM inside i JOIN spans s ON s.parent = i.span AND s.cluster IS NOT DISTINCT FROM i.cluster), "
    f"every AS (SELECT i.top, s.*, {_HEAD} AS head FROM inside i JOIN spans s ON s.span = i.span "
    "AND s.cluster IS NOT DISTINCT FROM i.cluster), "
    "processes AS (SELECT cluster, top, gpu, min(began) AS began, max(ended) AS ended FROM (SELECT cluster, top, "
    "began, ended, split_part(span, '-', 1) AS process, unnest(gpus) AS gpu FROM every "
    "WHERE head) GROUP BY cluster, top, gpu, process), "
    "reads AS (SELECT cluster, top, began, max(ended) OVER (PARTITION BY cluster, top, gpu ORDER BY began ROWS BETWEEN "
    "UNBOUNDED PRECEDING AND 1 PRECEDING) AS before FROM processes), "
    "twice AS (SELECT cluster, top, coalesce(bool_or(began < before), false) AS twice FROM reads GROUP BY ALL), "
    "sums AS (SELECT cluster, top, count(*) AS spans, sum(own_j) AS total_j, "
    "sum(low_j) FILTER (WHERE head) AS low_j, sum(high_j) FILTER (WHERE head) AS high_j, "
    "count(*) > count(own_j) OR bool_or(head AND high_j IS NULL) AS unknown FROM every GROUP BY ALL), "
    "known AS (SELECT s.*, coalesce(t.twice, false) AS twice FROM sums s LEFT JOIN twice t ON t.top = s.top "
    "AND t.cluster IS NOT DISTINCT FROM s.cluster) "
    "SELECT s.cluster, s.span, s.parent, s.name, s.attributes, s.job_id, s.node, s.began, s.ended, k.spans, "
    + "".join(
        f"CASE WHEN NOT (k.unknown OR k.twice) THEN k.{name} END AS {name}, " for name in ("total_j", "low_j", "high_j")
    )
    + "k.twice, s.own_j, s.error FROM spans s JOIN known k ON k.top = s.span "
    "AND k.cluster IS NOT DISTINCT FROM s.cluster)",
    (
        Column("spans", "BIGINT", "", "how many spans these are, itself included"),
        Column("total_j", "DOUBLE", "J", "energy of all of them; NULL where that of one is not known, or twice"),
        Column("twice", "BOOLEAN", "", "whether two processes counted all of the same GPU at the same time"),
    ),
)
