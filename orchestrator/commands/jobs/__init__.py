"""Commands about jobs and tasks: submit, list, show, logs, why, wait, cancel, retry, schedule."""
