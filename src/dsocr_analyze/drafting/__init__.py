"""Drafts a stages file for any transformers model, from its modules and its forward."""

from __future__ import annotations
