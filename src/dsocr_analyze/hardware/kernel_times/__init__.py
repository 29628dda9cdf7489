"""Seconds of single kernels from their sizes, arrays in, arrays out; and fits to measured ones."""
