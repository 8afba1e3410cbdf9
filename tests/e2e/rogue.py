# SPDX-License-Identifier: Apache-2.0
"""A worker that was taken over: tests/e2e/rogue.c."""
import subprocess

import harness
from harness import check_equal


class Rogue:
    """Writes into tensors; stays, and lets go in end()."""

    def __init__(self, site, *places, model="demo"):
        argv = [harness.need_env("ROGUE_BIN"), site.weightd_socket, model]
        argv += [str(x) for place in places for x in place]
        self.process = subprocess.Popen(argv, env=site.env, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)
        check_equal(self.process.stdout.readline(), b"wrote\n", "what the rogue says")
        self.pid = self.process.pid

    def end(self):
        self.process.communicate(timeout=30)
        check_equal(self.process.returncode, 0, "exit status of the rogue")
