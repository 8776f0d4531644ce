"""Helpers that scripts import: data, trackers, writers."""
