"""Scans and recurrences in time."""
