"""Results of servers' benchmark programs, read and compared with predictions."""
