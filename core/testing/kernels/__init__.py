"""Kernels without a GPU: their dialect checked, their bodies run on the host."""
