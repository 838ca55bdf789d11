"""Reads GPUs through DCGM: the stream `dcgm`, over NVIDIA's own Python bindings wherever they are installed."""
