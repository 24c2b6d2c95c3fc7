"""The compiled engine: a Plan as arrays, played by numba kernels.  It gives the acts, times and peaks of simulator.engine, event for event.

    compile_plan(plan, cost) -> CompiledPlan --times()--> Times    ends of the steps, for searches
                                             --trace()--> Trace    everything
                                             --peaks()--> bytes    per rank

Compiling the kernels costs some seconds once per machine (they are cached on disk), loading them some tenths of a second per process.
"""

from simulator.compiled.arrays import CompiledPlan
from simulator.compiled.compiler import compile_plan
from simulator.compiled.results import peaks, times, trace

__all__ = ["CompiledPlan", "compile_plan", "peaks", "times", "trace"]
