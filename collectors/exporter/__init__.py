"""The backend `prometheus`: GPUs as the pages of exporters show them, or the page of a Prometheus."""
