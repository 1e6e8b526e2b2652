"""From a job file to a checked plan of tasks."""
