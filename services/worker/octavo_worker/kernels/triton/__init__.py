"""Triton kernels for GPUs: one kernel and its launcher a file. Only the files need Triton, not the package."""
