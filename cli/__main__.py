"""`python -m xl.cli` is `xl`."""

from .main import main

raise SystemExit(main())
