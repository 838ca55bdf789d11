-- The 95th percentile of the power of each GPU and day.
select cluster, gpu, cast(ts as date) as day, count(*) as n,
    percentile_cont(0.95) within group (order by board_mw) / 1000 as p95_w
from readings where board_mw is not null
group by cluster, gpu, cast(ts as date) order by cluster, gpu, day
