"""Rotary positions: pairs of features of a head turn by angles of their token."""
