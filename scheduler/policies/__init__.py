"""Policies: each decides what the next engine step of a domain holds."""
