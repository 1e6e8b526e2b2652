"""The parts of the scheduler: rooms and what is kept of them, the search for a room, and the words for what waits."""
