"""The engine: decides what every step computes. Pure: no clock, no threads, no tensors, no I/O."""
