"""Running tasks again: reproduce, verify, bisect, and interleaved comparisons."""
