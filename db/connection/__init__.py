"""Opening and upgrading a database, its errors, the leader lock and change notification."""
