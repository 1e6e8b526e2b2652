"""The programs that stages start; they run under a toolchain's interpreter."""
