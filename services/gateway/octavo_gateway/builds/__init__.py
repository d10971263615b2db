"""Builds for devices at the gateway: accepted as jobs, followed and downloaded through their builders."""
