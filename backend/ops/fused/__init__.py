"""Ops that the front end took apart for the planner, put together again where one fragment holds all parts.

    mm(x, w) + b                                           ->  mm_bias(b, x, w)                addmm
    s = x - max(x);  s - log sum exp s                     ->  _log_softmax(x)
    g - exp(y) sum(g)                                      ->  log_softmax_gradient(g, y)
    mean, variance, (x - mean) / root w + b                ->  batch_norm(x, w, b, ...)        native_batch_norm
    its gradients in sums of g and g x                     ->  batch_norm_gradient(g, x, ...)  native_batch_norm_backward
    the same of 16 bits, between casts from and to them    ->  short_batch_norm(x, ...)        the same kernels
    where(x > 0, x, w x), and its gradients                ->  prelu(x, w), prelu_gradient(g, x, w)

The front end separates the parts so that the value between them can be P(sum) or P(max).  Where no device reduces that value, the parts stand
next to each other in one fragment and compute, to rounding, what the kernel of the whole op computes.  They stay as they are if a boxing (even
a local one) lies between them, or if another op reads one of the parts.
"""

from backend.ops.fused.table import KERNELS, fuse

__all__ = ["KERNELS", "fuse"]
