"""Campaigns of hostile input: cases drawn at random, each run against every promise at once."""
