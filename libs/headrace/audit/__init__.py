"""The audit trail: every change as a row of a `changes` table, with the application's context."""
