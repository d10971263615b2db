"""Moves blocks of keys and values: within the pool, and between it and host memory."""
