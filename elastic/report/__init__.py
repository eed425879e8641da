"""Effect. What people see of a run: a page, live or in a file, and a view for the terminal."""
