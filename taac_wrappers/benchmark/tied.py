"""Becomes a Python script that is asked to end when the process that started it ends, however that happens.

    python tied.py <pid of that process> script.py arguments...

Else a runner that is killed would leave its training runs behind, and nobody would know of them. Only Linux can do
this; elsewhere such a run goes on, and holds its lock until it is done. The signal is SIGINT, because the runner itself
asks by SIGTERM: a second signal of the same kind would not let the script save.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)
        if os.getppid() != int(parent):  # it has ended already
            sys.exit(128 + signal.SIGINT)
    os.execv(sys.executable, [sys.executable, *command])
