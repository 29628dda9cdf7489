"""A network's forward, written once, from which all that it costs follows."""
