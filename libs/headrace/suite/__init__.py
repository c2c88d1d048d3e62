"""State that belongs to the suite as a whole, not to one service."""
