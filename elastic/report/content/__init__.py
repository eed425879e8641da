"""Pure. What a report of a run shows, from the lines of its journal and the ledger's account."""
