"""Budgets and baselines: whether a model's cost is still within its limits."""
