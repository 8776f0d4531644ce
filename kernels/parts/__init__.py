"""What several kernel families share: their programs, closed forms and small runs."""
