"""Commands about results: matrix, results, query, compare, trend, report, targets, import."""
