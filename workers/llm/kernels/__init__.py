"""What the kernels of a compiled program must cost and what they take, from what the compiler wrote."""
