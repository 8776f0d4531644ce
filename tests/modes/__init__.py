"""Modes: each a folder behind one protocol."""
