"""The debugger: stops, steps both ways, and what the cores hold, for a console and for editors."""
