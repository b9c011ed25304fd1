"""Models by name: where their weights, tokenizer and chat template come from."""
