"""Models of the worker: reading checkpoints, and the forward passes of the families."""
