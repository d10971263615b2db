"""Qualcomm's HTP by onnxruntime-qnn: context binaries made offline, and its simulator."""
