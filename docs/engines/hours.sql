-- Sums of each hour.
select date_trunc('hour', ts) as hour, count(*) as n, sum(board_mw) / 1000 as sum_w, max(temperature_c) as hottest_c
from readings group by date_trunc('hour', ts) order by hour
