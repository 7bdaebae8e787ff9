"""The command line of the example."""

from __future__ import annotations

import argparse
import random
import sys

from softnpu.tools.examples.camera.pipeline import PipelineError, main

parser = argparse.ArgumentParser(prog="camera", description="A camera, an inference and a consumer.")
parser.add_argument("--frames", type=int, default=200, help="end after so many frames")
parser.add_argument("--seconds", type=float, default=0, help="run for so long instead")
parser.add_argument("--kill", action="store_true", help="kill the processes at random meanwhile")
parser.add_argument("--seed", type=int, default=None, help="of the random kills")
given = parser.parse_args()
try:
    seed = random.randrange(1 << 32) if given.seed is None else given.seed
    if given.kill:
        print(f"seed {seed}", flush=True)
    sys.exit(main(given.frames, given.seconds, given.kill, seed))
except PipelineError as error:
    sys.exit(f"camera: {error}")
