"""Quantizers: one program for each, run under its own toolchain, that writes a model in low precision.

They import the standard library, torch, transformers, safetensors, the quantizer's own package and the modules of
workers.llm that need no more than these.
"""
