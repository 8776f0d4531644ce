"""Generation: layers on square regions, tokens of requests pass through."""
