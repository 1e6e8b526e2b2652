"""The limits of what one job may ask for: far above what is of use, and far below what would stop a head."""

MAX_MODELS = 64
MAX_VALUES = 256  #: of a list in a job file
MAX_FILES = 1000  #: of a folder that a job file names
MAX_EXCLUSIONS = 200
MAX_CELLS = 10_000  #: of a job: combinations of all axes, exclusions included, times models and stages
MAX_WORKLOADS = 256  #: batch sizes times prompt lengths
MAX_DEVICES = 512  #: of a variant: tp times pp
MAX_NODES = 64  #: of a gang
MAX_COMMANDS = 2_000  #: of a task
MAX_COMMANDS_OF_JOB = 100_000
MAX_SAMPLES = 1_000_000  #: of a task: its processes times their repetitions
MAX_STEPS = 10_000_000  #: that a task times: its generations times their new tokens

MAX_BATCH = 1 << 16
MAX_CONCURRENCY = 1 << 14  #: requests in flight
MAX_RATE = 1e5  #: requests per second
MAX_TOKENS = 1 << 24  #: of a prompt, a generation or a window
MAX_REPETITIONS = 100_000
MAX_WINDOWS = 1 << 20
MAX_TIMEOUT_S = 365 * 24 * 3600

MAX_TEXT = 4096  #: characters of a path, a flag or a name
MAX_MAPPING_BYTES = 64 << 10  #: of all overrides, which are flags of programs
MAX_NUMBER = 1 << 53  #: the largest whole number that every program reads alike
