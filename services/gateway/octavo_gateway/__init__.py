"""The gateway: keys, prompts, acceptance and streams. Knows no tensors and no placement."""
