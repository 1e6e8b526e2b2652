"""Evaluation: what a compiled program, and the reference, score on tasks of lm-evaluation-harness."""
