"""Quantized weights as parameters and modules of a program."""
