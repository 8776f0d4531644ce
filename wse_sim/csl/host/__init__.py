"""The host of a CSL program: loading, copies, launches, and what is read after the run."""
