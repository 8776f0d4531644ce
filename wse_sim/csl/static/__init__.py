"""Static analysis of CSL programs whose course does not depend on data: the proof, and their times by the
max-plus executor."""
