"""Runs the suite's services on one machine: starts, watches, restarts and stops them.

Only `cli` may import it. It never imports a service, which it starts as a process instead.
"""
