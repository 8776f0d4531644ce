"""What several kernel families are made of."""
