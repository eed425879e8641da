"""Effect. Groups of commands of the command line, a module each."""
