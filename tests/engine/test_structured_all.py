#!/usr/bin/env python3
# hayate-test: long
"""All of test_structured.py: every schema answered by the bundled model."""

import pathlib
import subprocess
import sys

script = pathlib.Path(__file__).with_name("test_structured.py")
sys.exit(subprocess.run([sys.executable, str(script), sys.argv[1], "all"]).returncode)
