"""Weight streaming: one kernel at a time on the whole wafer, weights stream in."""
