"""Experiments on GPUs: a kernel under stated conditions, repeated until the time is precise enough, with figures."""
