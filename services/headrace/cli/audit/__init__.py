"""`headrace audit …`: run, read and revert an audit trail."""
