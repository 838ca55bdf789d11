-- The view `readings`: telemetry as `whorl sql` shows it, but for rows in journals. A row of `late` takes the place of the
-- one with its cluster, gpu and ts. board_mw is NULL where whorl does not trust the sensor. Add other columns in the
-- three places where these stand.
with newest as (
    select * from (
        select *, row_number() over (partition by cluster, gpu, ts order by written desc) as place from late
    ) as numbered where place = 1
), counted as (
    select cluster, gpu, ts, quality, coalesce(power_instant_mw, power_mw) as power, energy_mj, sm_clock_mhz,
        temperature_c
    from telemetry as t
    where not exists (select 1 from newest as n where n.cluster = t.cluster and n.gpu = t.gpu and n.ts = t.ts)
    union all
    select cluster, gpu, ts, quality, coalesce(power_instant_mw, power_mw), energy_mj, sm_clock_mhz, temperature_c
    from newest
)
select cluster, gpu, ts, energy_mj, sm_clock_mhz, temperature_c,
    case when power between 500 and 5000000 and coalesce(quality, '') not like '%power_stuck%'
        and coalesce(quality, '') not like '%power_zero%' then power end as board_mw
from counted
