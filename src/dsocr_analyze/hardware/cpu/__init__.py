"""Kernels of a CPU: what their seconds are made of, and a profile of the CPU at hand."""
