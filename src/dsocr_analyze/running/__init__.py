"""Gives a model's own code the environment it expects, only while it runs."""
