"""Effect. The worker's side: session, step transaction, reductions, healing. Needs torch, never ray."""
