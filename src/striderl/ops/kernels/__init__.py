"""Kernels of our own in Triton, for a GPU; `ops` and `networks` call them where they are faster than torch's."""
