"""What runs it: model, KV cache, workers, engine and simulated devices."""
