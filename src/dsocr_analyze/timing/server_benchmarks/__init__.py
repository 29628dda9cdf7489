"""What the benchmark programs of serving engines report."""
