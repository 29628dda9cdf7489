"""The pages of modules: `docs/modules/op-NAME.md` is written from `NAME.py`, by its `page`."""
