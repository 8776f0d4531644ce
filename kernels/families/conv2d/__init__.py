"""2-D convolution."""
