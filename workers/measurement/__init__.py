"""The conditions of a measurement: host samples, foreign GPU processes, disturbances, reruns."""
