"""Training data: descriptions that workers open themselves, readers that give a rank just its part, and their place in a Plan.

describe (what and where) --open_source--> Reader (read, prepare; by sample number) --Loader--> what SOURCE and PREPARE do in one act
"""

from backend.data.describe import Arrays, Images, Order, Source, Synthetic, SyntheticTensor, Tokens, parse_source
from backend.data.feed import Feed, python_feed
from backend.data.loader import Loader
from backend.data.opening import open_source
from backend.data.reader import Reader

__all__ = [
    "Arrays",
    "Feed",
    "Images",
    "Loader",
    "Order",
    "Reader",
    "Source",
    "Synthetic",
    "SyntheticTensor",
    "Tokens",
    "open_source",
    "parse_source",
    "python_feed",
]
