"""Products with weights: kernels for few rows, and the layout of weights in memory."""
