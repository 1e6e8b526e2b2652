"""Files on their way in and out: artifacts, whole variants, databases, quoted targets."""
