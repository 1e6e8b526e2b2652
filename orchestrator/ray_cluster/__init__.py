"""Bringing a cluster up: Ray's processes, their token, and the node that joins."""
