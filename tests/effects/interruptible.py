"""The command line in a process of its own that heeds interrupts.

Who starts the tests in the background of a shell has them, and all that they start, ignore interrupts.
"""

MAIN = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from elastic.cli import main; main()"
