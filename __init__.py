"""whorl: measure every GPU of a fleet, keep what was seen in tables, and say which GPUs differ and why."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .analysis import variability
    from .analysis.energy.answers import energy
    from .dashboards.store_report import look, report
    from .jobs import ledger
    from .jobs.advice import advise
    from .jobs.campaign.driving import run_campaign
    from .jobs.campaign.status import campaign_status, plan_campaign
    from .jobs.collecting import collect
    from .jobs.measuring import measure
    from .store import Store

__version__ = "0.1.0"

# Loaded on first use, so that `import whorl` and `whorl --help` stay instant.
_LAZY = {
    "Store": ".store",
    "advise": ".jobs.advice",
    "campaign_status": ".jobs.campaign.status",
    "collect": ".jobs.collecting",
    "energy": ".analysis.energy.answers",
    "look": ".dashboards.store_report",
    "measure": ".jobs.measuring",
    "plan_campaign": ".jobs.campaign.status",
    "report": ".dashboards.store_report",
    "run_campaign": ".jobs.campaign.driving",
    "variability": ".analysis",
}

_MODULES = {"ledger": ".jobs.ledger"}

__all__ = [
    "Store",
    "__version__",
    "advise",
    "campaign_status",
    "collect",
    "energy",
    "ledger",
    "look",
    "measure",
    "plan_campaign",
    "report",
    "run_campaign",
    "variability",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name], __name__), name)
    if name in _MODULES:
        return import_module(_MODULES[name], __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
