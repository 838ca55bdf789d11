"""whorl's command line, kept running: each line read is a list of arguments, each line written what came of it.

A command then costs what it does, not an interpreter's start. It runs as the user who started this.
"""

from __future__ import annotations

import json
import sys
import traceback

from click.testing import CliRunner

from whorl.cli import cli

for line in sys.stdin:
    result = CliRunner().invoke(cli, json.loads(line))
    stderr = result.stderr
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        stderr += "".join(traceback.format_exception(result.exception))
    sys.stdout.write(json.dumps([result.exit_code, result.stdout, stderr]) + "\n")
    sys.stdout.flush()
