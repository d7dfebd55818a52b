"""Keeps the numbers of the standard streams taken, also where they were closed before we started."""

from __future__ import annotations

import os


def fill_standard_descriptors() -> None:
    """Open the null device in place of each of stdin, stdout and stderr that is closed.

    Whatever is opened next would get its number otherwise: rank 0 would read a log file or a socket as its
    standard input. What is opened here is not inherited: a program that xl becomes finds it closed still.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
