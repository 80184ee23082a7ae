"""`python -m simulator` is `trainsim`."""

import os
import signal

if __name__ != "__mp_main__":  # the name under which spawned processes import this file
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))  # until `main` installs its own handlers

from .cli import main

if __name__ == "__main__":
    main()
