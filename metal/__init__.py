"""Operations with kernels, each beside its reference; device facts; the BLAS of Linux CPUs."""
