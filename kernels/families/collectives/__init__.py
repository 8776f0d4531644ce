"""Collective operations: sums and multicasts along lines and over rectangles."""
