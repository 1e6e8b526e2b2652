"""The programs that stages start; they run under a toolchain's interpreter.

Torch and transformers make half a million objects as they are imported, and no garbage: little is looked for meanwhile.
`program.run` goes back to the usual.
"""

import gc

USUAL = gc.get_threshold()
WHILE_IMPORTING = 200_000  #: new objects between two looks for garbage

gc.set_threshold(WHILE_IMPORTING)
