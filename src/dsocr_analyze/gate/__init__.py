"""Budgets and baselines: whether what a model costs is still what it may cost."""
