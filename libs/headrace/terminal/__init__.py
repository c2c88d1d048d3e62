"""Text that is safe to print in a terminal.

Any package may import it. It never changes what is stored or logged, only what is shown.
"""
