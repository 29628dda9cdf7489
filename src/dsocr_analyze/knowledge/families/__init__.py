"""Shared by the pages of a family: symbols, formulas, and templates of whole pages."""
