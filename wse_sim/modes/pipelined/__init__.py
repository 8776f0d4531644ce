"""The pipelined mode: every kernel rests on its region, samples stream through."""
