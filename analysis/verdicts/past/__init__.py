"""Each GPU against its own past: changes, drifts, unstable GPUs, and what many GPUs do together."""
