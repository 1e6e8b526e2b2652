"""The programs that stages start with `python -m workers.llm.programs.NAME`."""
