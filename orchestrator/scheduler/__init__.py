"""The scheduler: which task runs where, and why a task waits. Pure."""
