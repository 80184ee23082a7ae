"""`python -m simulator` is `trainsim`."""

from .cli import main

main()
