"""`python -m simulator` is `trainsim`."""

import os
import signal

if __name__ != "__mp_main__":  # as which processes that are spawned import this file
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))  # until `main` has its own: nothing was begun

from .cli import main

if __name__ == "__main__":
    main()
