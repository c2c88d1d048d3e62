"""Judges that share no code with what they judge.

Nothing in this folder imports headrace's decoders, conversions, mirrors or `verify`. The databases
define values in SQL, and a plain reader of its format defines the content of a message.
"""
