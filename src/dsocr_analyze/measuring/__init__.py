"""Measurements on a real device: seconds and memory of passes, and times of single kernels."""
