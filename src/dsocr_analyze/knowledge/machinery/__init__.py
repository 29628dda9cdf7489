"""Checks and writes pages; their content is in `pages`, `families` and `documents`."""
