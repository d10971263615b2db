"""What every layer above knows about a decoder graph: its interface, how to feed it, run it and measure it."""
