"""What a store knows as series for monitoring systems: newest readings, identities, and whorl's findings.

`series` says what a series is and makes those of readings; `findings` makes those of conclusions. `prometheus` and
`otlp` spell the same series in their formats.
"""
