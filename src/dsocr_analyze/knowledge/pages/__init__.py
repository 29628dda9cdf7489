"""The module pages: `page` in `NAME.py` makes `docs/modules/op-NAME.md`."""
