"""`superinfer bench`: mixed-SLO load on the real executor."""
