"""What can be wrong with a bundle or with what it is asked: one sentence, and what to do about it."""

from __future__ import annotations

__all__ = ["BundleDamaged", "ContextFull", "DeviceError", "DoesNotFit", "RuntimeMissing"]


class DeviceError(Exception):
    """Base of all errors that reach a user of the runner."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class DoesNotFit(DeviceError):
    """Tokens that are not the model's, or more of them than its context holds."""


class ContextFull(DeviceError):
    """The conversation has as many tokens as the model's context holds."""


class BundleDamaged(DeviceError):
    """Files of a bundle are missing, or say what does not go together."""


class RuntimeMissing(DeviceError):
    """What the bundle was compiled for is not on this machine."""
