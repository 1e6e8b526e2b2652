"""Checkpoints, meta models, and the parameter archive of each rank."""
