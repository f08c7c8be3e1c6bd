"""The program that the scripts here run: build/kvlab, or what KVLAB names."""
import os
import pathlib
import sys

KVLAB = os.environ.get("KVLAB", str(pathlib.Path(__file__).resolve().parents[3] / "build" / "kvlab"))


def want_kvlab(script):
    """Ends with a line that begins with the script's name where there is none."""
    if not os.access(KVLAB, os.X_OK):
        sys.exit("%s: %s: not there, want a build or KVLAB=PATH" % (script, KVLAB))
