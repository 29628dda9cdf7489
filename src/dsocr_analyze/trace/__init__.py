"""Runs a model and records what ran: each operator, counted by its rule, under its module."""
