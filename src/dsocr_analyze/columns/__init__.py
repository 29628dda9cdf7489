"""Many workloads at once as table columns, for sweeps and lists of pages. Never imports torch."""
