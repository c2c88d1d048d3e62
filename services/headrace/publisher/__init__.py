"""The publisher: frames in, acknowledged JetStream messages out, exactly once and in commit order."""
