"""The leader: the loop that schedules tasks, and everything that the loop does."""
