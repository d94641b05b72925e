"""Checks of kernels without a GPU: lint, texts, compilers, execution on the host."""
