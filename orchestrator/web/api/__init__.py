"""The interface for programs, `/api/v1`: its answers are those that commands print with `--json`."""
