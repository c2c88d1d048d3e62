"""Runs the suite's services on one machine: starts, watches, restarts and stops them."""
