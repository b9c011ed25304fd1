"""What was promised: SLO contracts, their schema, names and registry."""
