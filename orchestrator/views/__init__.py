"""Rows, tables, matrices, pivots, logs and progress as users see them."""
