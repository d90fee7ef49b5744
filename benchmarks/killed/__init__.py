"""A tiny experiment for kill.py: many results in a second, large enough that their writing takes a while."""

from killed.config import DURATION as DURATION
from killed.config import REPRODUCES as REPRODUCES
from killed.config import TITLE as TITLE
from killed.config import VERSION as VERSION
from killed.config import Config as Config
from killed.config import configs as configs
from killed.run import run as run
