"""Model sources, attention kernels, experts and the layout of quantized folders."""
