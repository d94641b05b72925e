"""GPU kernels and device facts."""
