"""Remembering: the only package that knows SQL."""
