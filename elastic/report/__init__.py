"""Effect. What people see of a run: a page, live or in a file, and the terminal's view. What they show is made purely."""
