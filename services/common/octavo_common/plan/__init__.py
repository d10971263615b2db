"""Sizing and roofline arithmetic: what a model needs of a device. Pure; knows no files, no network and no tensors."""
