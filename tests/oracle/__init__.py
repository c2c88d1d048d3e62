"""Judges that share nothing with what they judge.

Nothing in this folder imports headrace's decoders, conversions, mirrors or `verify`. What a value
is, the databases say in SQL; what a message holds, a plain reader of its format.
"""
