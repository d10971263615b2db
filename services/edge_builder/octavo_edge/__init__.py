"""The edge builder: from a checkpoint to a verified bundle for a device's NPU."""
