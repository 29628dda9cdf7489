"""CPU kernels: the contributions to their times, and the fitted coefficients."""
