"""``python -m gradsift``."""

import sys

from gradsift.cli.main import main

sys.exit(main())
