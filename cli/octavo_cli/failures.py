"""Says in plain words what the transport, the system and the disk have said in theirs. Prints nothing."""

from __future__ import annotations

import errno
import os

import octavo
from octavo_cli.context import Context
from octavo_cli.datadir import DataDirUnusable
from octavo_common import space
from octavo_common.errors import FailedPrecondition, OctavoError

# Of files: what the machine and its owner have to put right, and no fault of ours.
_OF_FILES = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EIO, errno.ELOOP)
# What a server that is none of ours, or a proxy, leaves behind.
_FOREIGN = (octavo.UnimplementedError, octavo.InternalError)
_FOREIGN_WORDS = "Received http2 header"


class NotAnswered(FailedPrecondition):
    """What was asked for did not come, and no Octavo service has said why."""

    code = "UNAVAILABLE"


def explained(error: Exception, context: Context) -> Exception:
    """The error in words for people, where it has none; else itself."""
    if isinstance(error, octavo.OctavoError):
        return _of_transport(error, context)
    if isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return _of_system(error, context)
    return error


def reason(error: octavo.OctavoError | OctavoError | OSError, context: Context) -> str:
    """Why something could not be asked, in one sentence."""
    found = explained(error, context)
    return getattr(found, "message", str(found))


def _of_transport(error: octavo.OctavoError, context: Context) -> Exception:
    if isinstance(error, octavo.UnavailableError) and error.job_id:
        return NotAnswered(
            f"{_platform(context)} does not answer any more; it keeps job {error.job_id}",
            hint=f"`{context.line('jobs', 'watch', error.job_id)}` prints the whole answer when it is up again",
        )
    if error.told:
        return error
    if isinstance(error, octavo.UnavailableError):
        return NotAnswered(
            f"{_platform(context)} does not answer",
            hint=f"`{context.line('status')}` says whether it runs, `{context.line('up')}` starts it",
        )
    if "Deadline Exceeded" in error.message:
        what = f"job {error.job_id} has not ended" if error.job_id else f"{_platform(context)} did not answer"
        return NotAnswered(f"{what} in the time given", hint="give it more time", code="DEADLINE_EXCEEDED")
    if isinstance(error, _FOREIGN) or type(error) is octavo.OctavoError or error.message.startswith(_FOREIGN_WORDS):
        return NotAnswered(
            f"{_platform(context)} does not speak as an Octavo gateway does",
            hint="--address and OCTAVO_ADDRESS take the gRPC address of a gateway as new as this program",
            code=error.code,
        )
    return error


def _platform(context: Context) -> str:
    try:
        return f"the platform at {context.addresses()}"
    except FailedPrecondition:  # it was stopped meanwhile
        return f"the platform of {context.data_dir.root}"


def _of_system(error: OSError, context: Context) -> Exception:
    where, number = str(error.filename or ""), error.errno
    if space.says_full(error):
        return space.no_space(context.data_dir.root, None, where or "what has to be written")
    problem = context.data_dir.problem() if where.startswith(str(context.data_dir.root)) else ""
    if problem:
        return DataDirUnusable(problem)
    if not where or number not in _OF_FILES:
        return error
    why = os.strerror(number).lower()
    return FailedPrecondition(f"{where} cannot be used: {why}", hint=f"`{context.line('doctor')}` looks at everything")
