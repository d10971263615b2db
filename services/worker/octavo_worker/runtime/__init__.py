"""Runs plans of the engine on a model: memory, inputs, forward pass, sampling, and the thread that does it."""
