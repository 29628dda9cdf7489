"""Pictures of figures: bars, lines and stacks (matplotlib, the optional extra `plot`).

`settings` says in a picture's title what is the same for all of it, `picture` lays it out, `values`
writes numbers on its bars; `stage_chart` and `throughput` draw reports. Sweeps and archives draw
their own.
"""
