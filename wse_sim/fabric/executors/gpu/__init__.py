"""The wavelet executor's planes on a GPU: a word of 64 routers or a core per thread; experimental."""
