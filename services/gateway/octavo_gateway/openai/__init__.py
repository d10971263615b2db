"""The OpenAI HTTP API of the gateway, and the job routes beside it."""
