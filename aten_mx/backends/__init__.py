"""Kernels, one file a backend."""
