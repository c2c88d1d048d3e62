"""`headrace status`, `top` and `tail`: observe a running suite."""
