"""Building blocks that several kernel families share."""
