"""Looking after a file: what it is like, and whether it is sound."""
