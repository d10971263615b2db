"""Compiled inner loops. Each file holds one kernel and the function that launches it."""
