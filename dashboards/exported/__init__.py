"""What a store knows as series for monitoring systems: newest readings, identities, and whorl's findings.

`series` says what a series is and makes those of readings, `findings` those of conclusions. `exporter` keeps them up to
date and makes the page for Prometheus; `otlp` sends them to a collector of OpenTelemetry.
"""
