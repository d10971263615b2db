"""Model files: the names that Octavo knows, and fetching them into the data directory. No torch, no tensors."""
