"""Embedding: look-up of table rows by index."""
