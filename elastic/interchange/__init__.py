"""Effect. Checkpoints of other kinds: what is written for others to load, and what a run may begin with."""
