"""From counts to seconds: how long a page takes, and how many pages per second a GPU does."""
