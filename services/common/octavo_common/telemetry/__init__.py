"""Traces, metrics and logs of all services: one setup, one place for names. Knows no service and no message of ours.

Content (prompts, answers) never goes in here.
"""
