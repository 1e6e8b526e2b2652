"""How answers look: rows, tables, matrices, pivots, logs and progress."""
