"""Measuring a server: that it serves what the model says, and how fast it does so under load."""
