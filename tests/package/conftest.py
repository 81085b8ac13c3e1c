"""What holds for every test of the Python package."""

import signal

# A shell has its background commands ignore SIGINT, and children inherit that; tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)
