"""Many workloads at once, as columns of a table: what sweeps and lists of pages share. No torch."""
