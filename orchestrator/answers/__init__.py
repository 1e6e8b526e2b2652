"""What is asked of the database, in the shape that `--json`, the HTTP interface and the Python client share."""
