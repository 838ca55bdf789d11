"""A small sweep of power limits and batch sizes, with figures that have no source but this file."""

from __future__ import annotations


def sweep() -> str:
    """Two workloads at three batch sizes under five limits, as CSV in the columns of Zeus.

    A unit of work is slower under a lower limit. Of the smaller workload at batch size 32 the time is not monotone, so
    that the lowest limit within 5 % is not the one of least energy.
    """
    rows = ["dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"]
    for network, work in (("small", 100.0), ("large", 900.0)):
        for batch in (16, 32, 64):
            for limit in (100, 125, 150, 200, 250):
                slow = 1.0 + max(0.0, (175 - limit) / 400) + (0.2 if limit == 125 else 0.0)
                if (network, batch, limit) == ("small", 32, 100):
                    slow, power = 1.04, 240.0
                else:
                    power = min(limit, 210.0) * 0.95
                rows.append(f"images,{network},{batch},sgd,{limit},{work * slow * (1 + 8 / batch):.3f},{power:.2f}")
    return "\n".join(rows) + "\n"
