"""The snapshot that the scheduler decides from."""
