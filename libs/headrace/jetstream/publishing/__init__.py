"""Publish an ordered sequence of messages to a JetStream stream, each exactly once."""
