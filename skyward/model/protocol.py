"""Constants that clients and nodes share: environment variables, files, exit statuses."""

from __future__ import annotations

# the environment of a runner, next to COMPUTE_POOL (skyward.model.instance.ENV_VAR)
SETTINGS_VAR = "SKYWARD_RUNNER"  # a RunnerSettings document
RUN_DIR_VAR = "SKYWARD_RUN_DIR"
PROCESSES_VAR = "SKYWARD_PROCESSES"  # set where the node is processes among others of its machine, not a container
CHANNEL_VAR = "SKYWARD_CHANNEL"  # hexadecimal; see `handshake.connect`. Not set where clients come by no channel

KEY_FILE = "key"  # in the run directory
WORK_FOLDER = "work"  # in the run directory of a node that is a process: its working directory
CODE_DIR = ".skyward-code"  # below a worker's working directory: local modules that the client sends
BAKED_DIR = "/opt/code"  # in an image with bake=True: the files of its includes; nodes find modules there
ANNOUNCEMENT = "skyward-ready "  # start of the runner's one line on its standard output; the addresses follow as JSON
SETUP = 0  # stands for the set-up of plugins where others have the id of their call

EXIT_FAILED, EXIT_CONFIG = 1, 2
EXIT_LEASE = 3  # no client has been there for the lease
EXIT_DISMISSED = 4  # another client than the pool's has ended the node: its pool does not replace it
DISMISS = "SIGUSR1"  # asks a runner to end with EXIT_DISMISSED
