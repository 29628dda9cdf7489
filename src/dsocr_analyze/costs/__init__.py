"""Closed forms that pages of the documentation are checked by, and nothing else. No torch."""
