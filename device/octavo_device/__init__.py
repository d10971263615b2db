"""Runs what the edge builder made, on the device: onnxruntime, numpy, tokenizers, and nothing else of Octavo."""
