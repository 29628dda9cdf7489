"""Pictures of figures, by matplotlib, the optional extra `plot`.

`settings` says what is constant in a title, `picture` lays out and writes numbers on bars;
`stage_chart` draws reports. Sweeps and archives draw their own.
"""
