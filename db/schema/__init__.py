"""Tables, ids, JSON values and filters."""
