"""Inputs of every kind, thousands of them, through the command line: none may raise, hang, or take all memory."""
