"""The bit planes of the wavelet executor on a GPU: each thread handles a word of 64 routers or a core;
experimental."""
