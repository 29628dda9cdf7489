"""Documents beside the pages of modules: a file here for each file in `docs` that is generated."""
