"""Artifacts by name, the files of a variant, and garbage collection of the store."""
