"""Looking at a run: metrics report, capture."""
