"""Starts the platform on one machine and keeps it alive."""
