"""The loop of a process that measures one system: a line of JSON in, a line of JSON out. Knows no system.

Runs in the environment of the system that it measures, so it needs the standard library only.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

Handler = Callable[..., Mapping[str, Any]]


def serve(handlers: Mapping[str, Handler]) -> None:
    """Answer requests ``{"op": NAME, ...arguments}`` until the input ends; an exception becomes ``{"error": ...}``.

    Every answer tells the CPU time of all threads in ``cpu_s``: where other things run, it says more than the clock.
    """
    # What libraries print goes to standard error, also what they print without Python.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        started = time.process_time()
        try:
            answer: dict[str, Any] = dict(handlers[request.pop("op")](**request))
        # Told to the other side, which decides what it means.
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answer["cpu_s"] = time.process_time() - started
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
