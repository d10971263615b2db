"""The operator console. Uses the SDK and nothing else of Octavo."""
