"""The configuration file, read with the types of tools that there are."""

from functools import partial
from typing import Final

from proxy.config import reading
from proxy.tools.kinds import KINDS

load: Final = partial(reading.load, kinds=KINDS)
parse: Final = partial(reading.parse, kinds=KINDS)
