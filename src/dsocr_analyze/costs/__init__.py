"""Closed forms, one file per layer family, over integers or arrays of integers. No torch."""
