"""What makes low-precision weights: a program for each maker, run under its own toolchain.

They import the standard library, torch, transformers, safetensors, their maker's package and those modules of
workers.llm that need no more.
"""
