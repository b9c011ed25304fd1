"""The `superinfer` script: until the command line is imported, an interrupt ends the process without a traceback."""

import signal


def main() -> None:
    """Import the command line, then run it with Python's own handling of interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from superinfer.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
