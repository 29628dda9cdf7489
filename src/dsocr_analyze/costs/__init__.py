"""Closed forms, one file per layer family: integers or arrays of integers in. No torch."""
