"""The pages for people: rendered by the server, and alive where scripts run."""
