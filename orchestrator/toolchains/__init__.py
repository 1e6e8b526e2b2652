"""What toolchains are to the head and to people: known, resolved, locked, built, released."""
