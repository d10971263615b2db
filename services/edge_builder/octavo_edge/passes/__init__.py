"""Rewrites of an ONNX graph. Each is a pure function of a ModelProto that changes no output; see registry.py."""
