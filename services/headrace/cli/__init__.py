"""The `headrace` command.

No other package may import it. It never imports a service, which it starts as a process instead.
"""
