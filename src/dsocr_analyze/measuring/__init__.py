"""Real passes on a real device: their seconds and memory, and kernels on their own."""
