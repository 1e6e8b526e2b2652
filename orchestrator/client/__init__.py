"""The Python API's client: one class, over the database or over HTTP."""
