"""Seconds of single kernels from their sizes: one file per kernel kind, arrays in, arrays out."""
