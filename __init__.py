"""whorl: measure every GPU of a fleet, keep what was seen in tables, and say which GPUs differ and why."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dashboards.answers.energy import energy, energy_excess, energy_quote, energy_reconcile
    from .dashboards.answers.judging import across, diff, explain, fingerprint, plan, variability, verdicts
    from .dashboards.answers.report import look, report
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
    ".dashboards.answers.energy": ("energy", "energy_excess", "energy_quote", "energy_reconcile"),
    ".dashboards.answers.judging": ("across", "diff", "explain", "fingerprint", "plan", "variability", "verdicts"),
    ".dashboards.answers.report": ("look", "report"),
    ".jobs.advice": ("advise",),
    ".jobs.campaign.driving": ("run_campaign",),
    ".jobs.campaign.status": ("campaign_status", "plan_campaign"),
    ".jobs.collecting": ("collect",),
    ".jobs.measuring": ("measure",),
    ".store": ("Store",),
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names}

__all__ = [
    "Store",
    "__version__",
    "across",
    "advise",
    "campaign_status",
    "collect",
    "diff",
    "energy",
    "energy_excess",
    "energy_quote",
    "energy_reconcile",
    "explain",
    "fingerprint",
    "ledger",
    "look",
    "measure",
    "plan",
    "plan_campaign",
    "report",
    "run_campaign",
    "variability",
    "verdicts",
]


def __getattr__(name: str) -> Any:
    if name == "ledger":
        return import_module(".jobs.ledger", __name__)
    if name in _MODULES:
        return getattr(import_module(_MODULES[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
