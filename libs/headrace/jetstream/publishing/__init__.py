"""Publish an ordered run of messages to a JetStream stream, each exactly once."""
