"""Effect. The demo: train on three nodes of this machine, break things, and measure what it cost."""
