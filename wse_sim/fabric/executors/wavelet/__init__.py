"""The wavelet executor: 64 routers per machine word, a worklist of words, cores on a timing wheel; equal to
the oracle."""
