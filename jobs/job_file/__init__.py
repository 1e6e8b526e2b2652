"""Job files: their sections, the expansion into variants, and the checks of both."""
