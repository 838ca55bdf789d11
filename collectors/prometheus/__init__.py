"""The backend `prometheus`: GPUs as the pages of dcgm-exporter, or of a Prometheus that collects them, show them."""
