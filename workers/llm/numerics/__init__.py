"""Comparing a program's logits with those of the reference model."""
