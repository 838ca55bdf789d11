"""Documents about what the batch system answers: `dashboards/` may not import `jobs/`, whose answers they show."""
