"""The life of a service's process: start, health, metrics, traces, failpoints, an ordered stop.

Any package may import it. It never knows the service's work.
"""
