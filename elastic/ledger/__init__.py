"""Pure. Where the time of a run went: from the lines of its journal to seconds that add up."""
