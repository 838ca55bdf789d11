"""whorl: measure every GPU of a fleet, keep what was seen in tables, and say which GPUs differ and why."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cli.answers.accounting import import_jobs
    from .cli.answers.advice import advise
    from .cli.answers.campaign import campaign_status, plan_campaign, run_campaign
    from .cli.answers.check import check
    from .cli.answers.job import idle_gpus
    from .cli.answers.measuring import collect, measure
    from .cli.answers.tuning import tune
    from .dashboards.answers.energy import energy, energy_calibrate, energy_excess, energy_quote, energy_reconcile
    from .dashboards.answers.importing import import_files
    from .dashboards.answers.judging import across, diff, explain, fingerprint, plan, variability, verdicts
    from .dashboards.answers.replay import replay
    from .dashboards.answers.report import look, report
    from .dashboards.answers.training import advise_burst, advise_power_plan, advise_spb
    from .jobs import ledger
    from .jobs.workers import engine
    from .store import Store

__version__ = "0.1.0"

# Loaded on first use, so that `import whorl` and `whorl --help` stay instant.
_LAZY = {
    ".cli.answers.accounting": ("import_jobs",),
    ".cli.answers.advice": ("advise",),
    ".cli.answers.campaign": ("campaign_status", "plan_campaign", "run_campaign"),
    ".cli.answers.check": ("check",),
    ".cli.answers.job": ("idle_gpus",),
    ".cli.answers.measuring": ("collect", "measure"),
    ".cli.answers.tuning": ("tune",),
    ".dashboards.answers.energy": ("energy", "energy_calibrate", "energy_excess", "energy_quote", "energy_reconcile"),
    ".dashboards.answers.importing": ("import_files",),
    ".dashboards.answers.judging": ("across", "diff", "explain", "fingerprint", "plan", "variability", "verdicts"),
    ".dashboards.answers.replay": ("replay",),
    ".dashboards.answers.training": ("advise_burst", "advise_power_plan", "advise_spb"),
    ".dashboards.answers.report": ("look", "report"),
    ".jobs.workers": ("engine",),
    ".store": ("Store",),
}
_MODULES = {name: module for module, names in _LAZY.items() for name in names}

__all__ = [
    "Store",
    "__version__",
    "across",
    "advise",
    "advise_burst",
    "advise_power_plan",
    "advise_spb",
    "campaign_status",
    "check",
    "collect",
    "diff",
    "energy",
    "energy_calibrate",
    "energy_excess",
    "energy_quote",
    "energy_reconcile",
    "engine",
    "explain",
    "fingerprint",
    "idle_gpus",
    "import_files",
    "import_jobs",
    "ledger",
    "look",
    "measure",
    "plan",
    "plan_campaign",
    "replay",
    "report",
    "run_campaign",
    "tune",
    "variability",
    "verdicts",
]


def __getattr__(name: str) -> Any:
    if name == "ledger":
        return import_module(".jobs.ledger", __name__)
    if name in _MODULES:
        public = getattr(import_module(_MODULES[name], __name__), name)
        if not isinstance(public, type):
            public = import_module(".dashboards.answers.reply", __name__).in_python(public)
        globals()[name] = public
        return public
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
