"""Copies, fills and transposes."""
