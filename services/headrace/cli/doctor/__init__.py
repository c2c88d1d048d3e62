"""`headrace doctor`: check servers and settings, and say the remedy for what is missing."""
