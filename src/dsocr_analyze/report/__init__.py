"""The report: one typed document, one builder, and one file for each form of output."""
