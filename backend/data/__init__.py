"""Training data: descriptions that workers open themselves, readers that give a rank just its part, and their place in a Plan.

describe (what and where) --open_source--> Reader (read, prepare; by sample number) --Loader--> what SOURCE and PREPARE do in one act
"""

from backend.data.describe import Source, parse_source
from backend.data.loader import Loader
from backend.data.opening import open_source
from backend.data.reader import Reader

__all__ = ["Loader", "Reader", "Source", "open_source", "parse_source"]
