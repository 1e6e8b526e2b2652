"""The report: the page that a team would keep by hand."""
