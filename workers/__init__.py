"""Doing it on one node."""
