"""The recovery benchmark's training in other systems, each called as its documentation shows."""
