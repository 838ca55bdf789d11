"""Reads GPUs through DCGM: the backend `dcgm`, over NVIDIA's own Python bindings wherever they are installed."""
