"""How long an engine may say nothing; apart from the client, whose imports a command line need not wait for."""

SILENCE_S = 30.0
"""An engine that says nothing for so long is stopped or hangs: its loop goes round many times a second."""
