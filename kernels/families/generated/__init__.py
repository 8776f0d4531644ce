"""Generated chains of elementwise operators, with a reduction at the end."""
