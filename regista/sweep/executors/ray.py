"""Workers of a Ray cluster, through its client server.  Ray gives points of a lost worker to others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from planner.ir.errors import Unsupported
from regista.sweep.executors.child import Apart, ChildLost
from regista.sweep.executors.lost import MOST_LOSSES, Done, Work, missing_package, refuse_lost
from regista.sweep.point import Point

__all__ = ["on_ray"]


def on_ray(points: Sequence[Point], work: Work, address: str) -> Iterator[Done]:
    """Each point with its columns, as they are done.

    Raises:
        RegistaError: 'ray' is missing.   Unsupported: no cluster answers.   WorkersLost: workers ended again and again with the same point.
    """
    try:
        import ray
    except ImportError:
        raise missing_package("ray", "ray") from None
    try:
        ray.init(f"ray://{address}", log_to_driver=False)
    except ValueError:
        raise missing_package("ray[client]", "ray") from None
    except (ConnectionError, TimeoutError) as error:
        raise Unsupported(
            f"no Ray cluster answers at {address} ({str(error).splitlines()[0][:80]}); start one with 'ray start --head'"
        ) from None
    try:
        apart = Apart(work)
        task = ray.remote(max_retries=MOST_LOSSES, num_cpus=1)(lambda point: apart(point))
        point_of = {task.remote(point): point for point in points}
        waiting = list(point_of)
        while waiting:
            done, waiting = ray.wait(waiting)
            for reference in done:
                try:
                    columns = ray.get(reference)
                except (ray.exceptions.WorkerCrashedError, ChildLost):
                    raise refuse_lost([point_of[reference]], "a Ray worker") from None
                yield point_of[reference], columns
    finally:
        ray.shutdown()
