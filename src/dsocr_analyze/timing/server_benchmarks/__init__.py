"""Results of serving engines' benchmark programs."""
