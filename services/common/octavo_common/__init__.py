"""Shared by the services: settings, errors, clock, ids, telemetry, gRPC kit, text, and the job table.

Knows no service.
"""
