"""The audit trail: every change a row of a `changes` table, with the application's context beside
it.
"""
