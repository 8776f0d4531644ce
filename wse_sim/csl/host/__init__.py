"""Host interface of CSL programs: loading, copies, launches, and results of a run."""
