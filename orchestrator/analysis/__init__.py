"""Statistics on measurements: comparisons, trends, gates, noise, device speed."""
