"""Running one attempt of a task, from its inputs to its result."""
