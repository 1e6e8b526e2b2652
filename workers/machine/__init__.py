"""The hardware of this machine: processors, GPUs, who uses them, settings that timings depend on."""
