"""Effect. What a host monitor sees of its node's hardware, and the checks before its workers may join."""
