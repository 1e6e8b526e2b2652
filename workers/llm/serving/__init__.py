"""Serving: continuous batching over a compiled program with a paged KV cache, behind an OpenAI-compatible API."""
