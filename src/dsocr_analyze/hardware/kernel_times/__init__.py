"""Seconds of single kernels from their sizes: one file a kernel kind, arrays in and arrays out."""
