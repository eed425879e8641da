"""Effect. Keeps Python's garbage collection out of the steps."""

import gc


def set_aside() -> None:
    """Collect now, and look at nothing that is left again: it is what was imported, and stays for good.

    With torch and Ray that is some 200,000 objects, and Python looks at all of them again in each full collection,
    between one second and minutes after the start: 0.1 to 0.4 s of some step (measured on two busy cores), and of all
    workers' steps, which wait for it.
    """
    gc.collect()
    gc.freeze()
