"""What it costs: static features of a model, measurements and the latency model."""
