"""What pages of one family share: their letters, their formulas, and shapes of whole pages."""
