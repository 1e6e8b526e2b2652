"""The split of a model over tensor-parallel ranks."""
