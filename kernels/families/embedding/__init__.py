"""Embedding: rows of a table by number."""
