"""Effect. Fault injection: one small function for each kind of fault, run where it must act."""
