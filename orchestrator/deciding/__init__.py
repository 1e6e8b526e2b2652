"""Whether numbers differ: comparisons, trends, gates and the speed of devices."""
