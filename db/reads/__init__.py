"""Queries behind the output of commands and reports."""
