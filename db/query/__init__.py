"""SQL of users: views, and read-only execution."""
