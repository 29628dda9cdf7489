"""The pages on modules: their formulas, checked against closed forms and traces, and written."""
