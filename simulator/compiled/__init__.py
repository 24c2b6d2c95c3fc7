"""The compiled engine: a Plan as arrays, played by numba kernels.  It gives the acts, times and peaks of simulator.engine, event for event.

    compile_plan(plan, cost) -> Compiled --times()--> Times    ends of the steps, for searches
                                         --trace()--> Trace    everything
                                         --peaks()--> bytes    per rank

Compiling the kernels costs some seconds once per machine (they are cached on disk), loading them some tenths of a second per process.
"""

from simulator.compiled.build import compile_plan
from simulator.compiled.perform import Times, peaks, times, trace
from simulator.compiled.recurrence import play_recurrence
from simulator.compiled.tables import Compiled

__all__ = ["Compiled", "Times", "compile_plan", "peaks", "play_recurrence", "times", "trace"]
