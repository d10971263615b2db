"""gRPC kit of all services: servers with one way to fail, drain and authenticate, and channels to other services.

Knows no service and no message of ours.
"""
