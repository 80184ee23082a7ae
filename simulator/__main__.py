"""`python -m simulator` is `trainsim`."""

import os
import signal

signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))  # nothing was begun until `main` has its own handler

from .cli import main  # noqa: E402

if __name__ == "__main__":
    main()
