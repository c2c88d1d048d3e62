"""Waiting: growing pauses between attempts, and waits that end at a deadline.

Any package may import it. It never knows what is being tried.
"""
