"""Commands that run tasks again: reproduce, verify, bisect."""
