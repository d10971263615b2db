"""The adapted decoder in torch, and how a checkpoint becomes one."""
