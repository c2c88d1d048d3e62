"""The archiver: the second confirmer of frames, which stores the log as numbered files.

No other package may import it. It never changes a file that it has written.
"""
