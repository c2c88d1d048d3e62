"""`headrace doctor`: checks servers and settings, and shows a remedy for each problem."""
