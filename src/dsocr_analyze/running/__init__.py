"""Answers what a model's own code asks of the machine, around it and only while it runs."""
