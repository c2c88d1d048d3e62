"""Runs the suite's services as processes on one machine: starts, watches, restarts, stops in order."""
