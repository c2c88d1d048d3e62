"""The publisher: turns frames into JetStream messages, exactly once and in commit order.

No other package may import it. It never confirms a change that JetStream has not acknowledged.
"""
