"""From a job file to a job, and to its end: reading, checking, planning, following, waiting."""
