"""Networks with the constructors of `tianshou.utils.net`."""
