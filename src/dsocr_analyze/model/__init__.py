"""A model's directory: its config and files, and whether its code is trusted."""
