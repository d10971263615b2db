"""Sessions on Qualcomm's HTP, and on its simulator where a bundle's vectors are replayed on Linux x86_64.

Needs onnxruntime-qnn beside onnxruntime, as a plug-in or built in.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from typing import Any

from octavo_device.bundle import Bundle
from octavo_device.errors import RuntimeMissing

__all__ = ["SIMULATOR", "check_qnn", "qnn_settings"]

# A key of a bundle's `extra`: set by whoever asks for the simulator.
SIMULATOR = "simulator"
_EP = "QNNExecutionProvider"


def check_qnn(bundle: Bundle) -> None:
    """Whether this bundle may be loaded here.

    Raises:
        RuntimeMissing: There is no HTP and nobody asked for the simulator, or the simulator would crash.
    """
    # The library's HTP for this machine is a simulator.
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return
    if not bundle.extra.get(SIMULATOR):
        raise RuntimeMissing(
            "this machine has no HTP",
            hint="the bundle was compiled for the device: run it there, or `verify --simulator`",
        )
    if bundle.extra.get("shares_weights"):
        raise RuntimeMissing(
            "the simulator crashes on binaries whose graphs share weights",
            hint="build with --target-option share_weights=no",
        )


def qnn_settings(bundle: Bundle) -> tuple[Any, Mapping[str, Any]]:
    """Settings of a session that runs the graph whole, and what the session takes besides.

    Raises:
        RuntimeMissing: onnxruntime-qnn is not installed, or has no HTP.
    """
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    if bundle.extra.get("shares_weights"):
        settings.add_session_config_entry("ep.share_ep_contexts", "1")
    try:
        import onnxruntime_qnn
    except ImportError:
        if _EP not in onnxruntime.get_available_providers():
            hint = "the bundle was compiled for the device: run it there, with pip install onnxruntime-qnn"
            raise RuntimeMissing(f"this onnxruntime has no {_EP}", hint=hint) from None
        library = "QnnHtp.dll" if sys.platform == "win32" else "libQnnHtp.so"
        return settings, {"providers": [_EP], "provider_options": [{"backend_path": library}]}
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == _EP]
    if not devices:
        onnxruntime.register_execution_provider_library(_EP, onnxruntime_qnn.get_library_path())
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == _EP]
    if not devices:
        raise RuntimeMissing(
            "onnxruntime-qnn finds no device", hint="the bundle was compiled for the device: run it there"
        )
    settings.add_provider_for_devices(devices, {"backend_path": onnxruntime_qnn.get_qnn_htp_path()})
    return settings, {}
