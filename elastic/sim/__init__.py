"""Pure. A seeded world in which the real controller, the real policies and the real worker protocol run."""
