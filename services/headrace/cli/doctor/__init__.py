"""`headrace doctor`: checks servers and settings, and shows a remedy for each problem.

Only `cli` may import it. It never changes what it checks.
"""
