"""Whether the code that a Plan names may run: Plans that were made here, and what the user trusts by ``--trust``."""

from regista.origin.check import check_code, names_code, record_like, trusting
from regista.origin.handed import handed, handed_file
from regista.origin.record import is_recorded, record

__all__ = ["check_code", "handed", "handed_file", "is_recorded", "names_code", "record", "record_like", "trusting"]
