"""Effect. Checkpoints in four tiers: memory, node, peers' object stores, and a persistent store. Import the modules."""
