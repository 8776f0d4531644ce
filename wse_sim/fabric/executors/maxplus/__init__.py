"""Queues as actors that hold the times of their words: max-plus equations are solved instead of stepping cycles."""
