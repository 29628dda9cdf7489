"""How long tests go on that draw attacks at random."""

import os

LONG = os.environ.get("DSOCR_CAMPAIGN") == "long"
"""Whether the many cases are run that take hours, in place of those that CI has time for."""
