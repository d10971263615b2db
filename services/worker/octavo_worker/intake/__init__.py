"""Takes this worker's jobs out of the table, has the engine compute them, and brings their ends back. No tensors."""
