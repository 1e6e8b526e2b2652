"""Following a job until it ends: progress, Ctrl-C, the matrix."""
