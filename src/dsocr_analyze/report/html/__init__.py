"""One self-contained HTML page of a report or of a comparison; needs the optional extra `html`."""
