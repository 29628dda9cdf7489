"""Generated documents other than the module pages: one source file per document in `docs`."""
