"""Toolchains other than the one that haloctl is installed in: resolved once, built once on each node."""
