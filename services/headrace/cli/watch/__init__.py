"""`headrace status`, `top` and `tail`: look at a running suite."""
