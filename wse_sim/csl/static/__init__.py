"""Programs in CSL whose course no data decide: the proof, and their times by the max-plus executor."""
