"""`headrace up`: run the whole suite on this machine.

Only `cli` may import it. It never stops a server that it did not start.
"""
