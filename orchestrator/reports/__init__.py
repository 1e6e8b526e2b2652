"""The report: one page with verdicts, timings, plots, changes and failures."""
