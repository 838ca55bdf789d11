"""Pages of exporters: the text that Prometheus scrapes, and what dcgm-exporter says in it about GPUs."""
