"""Tracing a model and assembling one multi-device MLIR module."""
