"""The publisher: turns frames into acknowledged JetStream messages, exactly once and in commit
order.
"""
