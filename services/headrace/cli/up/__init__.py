"""`headrace up`: run the whole suite on this machine."""
