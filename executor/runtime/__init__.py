"""Device runtimes: one small interface to a vendor's devices, and one module for each vendor."""
