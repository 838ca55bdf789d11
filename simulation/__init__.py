"""A simulated fleet: the physics of its GPUs, their spread and their faults."""
