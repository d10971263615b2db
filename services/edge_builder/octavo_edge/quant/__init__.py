"""Quantisation of ONNX graphs: grids, ranges, weights, where quantisers go, and the files that say so."""
