"""Devices, launches, kernel or reference, fusion, the BLAS of Linux CPUs."""
