"""Pictures of figures, by matplotlib, the optional extra `plot`."""
