"""The page Telemetry: what any GPUs did at any time, what they do at this moment, and what happened meanwhile."""
