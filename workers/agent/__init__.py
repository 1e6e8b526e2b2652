"""The agent of a node, and the protocol that it speaks with the head."""
