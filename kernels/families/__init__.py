"""The kernel families: one file or one folder each."""
