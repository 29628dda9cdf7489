"""A model: its directory, whether its code is trusted, and the environment that it runs in."""
