"""Workers of a Dask cluster (distributed).  Its scheduler gives points of a lost worker to others; a worker hands each to a process of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

from planner.ir.errors import RegistaError, Unsupported
from regista.sweep.executors.child import Apart, ChildLost
from regista.sweep.executors.lost import MOST_LOSSES, Done, Work, missing_package, refuse_lost
from regista.sweep.point import Point

__all__ = ["on_dask"]

_ANSWER_S, _WORKER_S = 10.0, 60.0


def on_dask(points: Sequence[Point], work: Work, address: str) -> Iterator[Done]:
    """Each point with its columns, as they are done.

    Raises:
        RegistaError: 'distributed' is missing, here or beside a worker regista is.   Unsupported: no scheduler answers, or it has no worker.
        WorkersLost: workers ended again and again with the same point.
    """
    try:
        from distributed import Client, as_completed
        from distributed.scheduler import KilledWorker
    except ImportError:
        raise missing_package("distributed", "dask") from None
    try:
        client = Client(f"tcp://{address}", timeout=_ANSWER_S)
    except (OSError, TimeoutError, ValueError) as error:
        raise Unsupported(
            f"no Dask scheduler answers at {address} within {_ANSWER_S:.0f} s ({str(error)[:80]}); start one with 'dask scheduler'"
        ) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=_WORKER_S)
        except TimeoutError:
            raise Unsupported(
                f"the Dask scheduler at {address} has no worker after {_WORKER_S:.0f} s; start some with 'dask worker tcp://{address}'"
            ) from None
        keys = [f"regista-point-{number}-{uuid.uuid4().hex}" for number in range(len(points))]
        point_of = dict(zip(keys, points, strict=True))
        futures = {future.key: future for future in client.map(Apart(work), points, key=keys, retries=MOST_LOSSES - 1)}
        try:
            for future in as_completed(list(futures.values())):
                point = point_of[future.key]
                try:
                    columns = future.result()
                except (KilledWorker, ChildLost):
                    raise refuse_lost([point], "a Dask worker") from None
                except ImportError as error:
                    raise RegistaError(
                        f"a Dask worker cannot import what the points need ({error}); install the same regista there"
                    ) from None
                # Its row is here: were the future kept, a lost worker that had done it would have another do it again.
                del futures[future.key]
                future.release()
                yield point, columns
        finally:
            client.cancel(list(futures.values()))
