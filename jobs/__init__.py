"""What is to be done: pure data and pure functions."""
