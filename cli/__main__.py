"""`python -m xl.cli` is `xl`."""

from .main import run

raise SystemExit(run())
