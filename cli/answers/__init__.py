"""The Python functions of verbs that measure or ask a scheduler: `dashboards/` may not import the `jobs/` they need."""
