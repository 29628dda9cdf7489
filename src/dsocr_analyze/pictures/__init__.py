"""Pictures of figures: bars, lines and stacks (matplotlib, the optional extra `plot`).

`settings` puts what is constant into a picture's title, `picture` lays it out, `values` writes
numbers on its bars; `stage_chart` draws reports. Sweeps and archives draw their own.
"""
