"""Deciding, and talking to people."""
