"""What people run: the `superinfer` command."""
