"""The ways to keep a checkpoint that `benchmarks.checkpoint_systems` compares, each in a process of its own."""
