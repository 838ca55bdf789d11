-- Power, energy, clock and temperature of each run, for Spark: what whorl's view `run_windows` has. A plain join would
-- compare each reading with all runs of its GPU, so time is cut into stretches first. In Trino (not tried) spell
-- unix_micros(x) as cast(to_unixtime(x) * 1e6 as bigint), percentile_disc as approx_percentile, and explode as unnest.
with stretch as (
    select greatest(60e6, 6 * avg(unix_micros(cast(ended as timestamp)) - unix_micros(cast(began as timestamp)))) as us
    from runs where ended >= began
), windows as (
    select run_id, cluster, gpu, began, ended,
        unix_micros(cast(began as timestamp)) as began_us, unix_micros(cast(ended as timestamp)) as ended_us
    from runs where gpu is not null and began is not null and ended is not null
), parts as (
    select windows.*, explode(sequence(floor(began_us / us), floor(ended_us / us))) as part
    from windows cross join stretch where ended > began
), read as (
    select readings.*, unix_micros(cast(ts as timestamp)) as ts_us, us from readings cross join stretch
), sums as (
    select p.run_id, count(*) as n, count(board_mw) as powers,
        avg(board_mw) / 1e3 as mean_w, max(board_mw) / 1e3 as most_w,
        percentile_disc(0.5) within group (order by floor(board_mw / 100)) / 10 as median_w,
        percentile_disc(0.95) within group (order by floor(board_mw / 100)) / 10 as p95_w,
        (max(ts_us) - min(ts_us)) / 1e6 as readings_s,
        min(struct(energy_mj, ts_us)) filter (where energy_mj is not null) as lowest,
        min(struct(-energy_mj as negative_mj, ts_us)) filter (where energy_mj is not null) as highest,
        avg(sm_clock_mhz) as sm_clock_mean_mhz, max(temperature_c) as temperature_max_c
    from parts as p join read as r on r.cluster = p.cluster and r.gpu = p.gpu and floor(r.ts_us / r.us) = p.part
        and r.ts_us >= p.began_us and r.ts_us < p.ended_us
    group by p.run_id
), measured as (
    select *, (ended_us - began_us) / 1e6 as window_s,
        (highest.ts_us - lowest.ts_us) / 1e6 as counter_s, (-highest.negative_mj - lowest.energy_mj) / 1e3 as counter_j
    from windows left join sums using (run_id)
), judged as (
    select *, counter_s > 0 and counter_s >= window_s / 2 and (powers = 0 or (
            counter_j >= 0.3 * mean_w * (counter_s - 0.3) - 1 and counter_j <= 1.5 * most_w * (counter_s + 0.3) + 1
        )) as by_counter,
        powers > 0 and readings_s > 0 and readings_s * powers / n >= window_s / 2 as by_power
    from measured
)
select run_id, cluster, gpu, began, ended, coalesce(n, 0) as n, mean_w as power_mean_w, median_w as power_median_w,
    p95_w as power_p95_w,
    case when by_counter then counter_j / counter_s * window_s when by_power then mean_w * window_s end as energy_j,
    case when by_counter then 'counter' when by_power then 'power' end as energy_from,
    sm_clock_mean_mhz, temperature_max_c
from judged order by run_id
