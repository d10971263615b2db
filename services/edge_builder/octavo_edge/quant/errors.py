"""What the quantiser cannot do with a graph."""

from __future__ import annotations


class CannotQuantise(ValueError):
    """The graph, its weights or the recipe's settings for them; the message names the tensor or node."""
