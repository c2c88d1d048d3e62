"""Waiting: growing pauses between attempts, and waits that end at a deadline.

Every loop that tries again uses these. Any package may import them; they never know what is being
tried.
"""
