"""Experiments on GPUs: a kernel under stated conditions, repeated until it is known well enough, with its figures."""
