"""Run a comparison over seeds and say whether the claim was seen.

    python -m tests.experiments              # list them
    python -m tests.experiments NAME ...     # run, print mean and range over the seeds
    python -m tests.experiments figures      # draw the README's pictures from what they left

Runs stand side by side, one thread each, so that their seconds mean nothing: speed measures those,
alone.
"""

import sys

from tests.experiments.runner import main

if __name__ == "__main__":  # the workers import this file too
    sys.exit(main(sys.argv[1:]))
