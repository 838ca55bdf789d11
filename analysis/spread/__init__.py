"""How much the GPUs of a fleet differ, whether that repeats, and whether it does from workload to workload."""
