"""Pictures of figures, by matplotlib, the optional extra `plot`.

`settings` says what is constant in a title, `picture` lays it out, `values` writes numbers on bars;
`stage_chart` draws reports. Sweeps and archives draw their own.
"""
