"""The worker: the engine, its runtime and the models it runs."""
