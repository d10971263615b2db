"""Attention over paged keys and values: the contract, and one backend per file."""
