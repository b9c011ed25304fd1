"""`superinfer serve`: an OpenAI-compatible server over the engine."""
