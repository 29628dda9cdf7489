"""The computed parts of the documentation, each figure by two witnesses: the tape and the trace."""
