"""The verb 'search-time': seconds of the search methods on models of growing size, as a table that can be continued and a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from planner.cost import parse_mesh
from regista.clusters import resolve_cluster
from regista.targets import check_targets
from regista.verbs.arguments import CLUSTER_HELP, counts, positive
from regista.verbs.screen import Json, show, status, status_text

__all__ = ["add_arguments", "perform"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", default="zoo:gpt", metavar="M,...", help="zoo models that have a key 'layers' (default zoo:gpt)")
    parser.add_argument("--methods", default="exact,o3,o2,greedy", metavar="M,...", help="search methods (default exact,o3,o2,greedy)")
    parser.add_argument("--layers", type=counts, default=(1, 2, 4, 8), metavar="N,...", help="numbers of layers (default 1,2,4,8)")
    parser.add_argument("--cluster", default="dgx-a100:1", metavar="C", help="(default dgx-a100:1) " + CLUSTER_HELP)
    parser.add_argument("--mesh", default="2,4", metavar="A,B", help="device mesh (default 2,4)")
    parser.add_argument("--seconds", type=positive, default=10.0, metavar="S", help="limit of one search (default 10)")
    parser.add_argument(
        "--csv", metavar="FILE", help="the table; rows it has are not measured again (default: the picture's name with .csv)"
    )
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="the picture (PNG or SVG)")


def perform(args: argparse.Namespace) -> Json:
    from regista.analysis.search_time import load_rows, measure, points, save_rows
    from regista.views.pictures.gantt import check_picture
    from regista.views.pictures.search_time import draw_search_time
    from regista.views.tables.search_times import rows_json, show_rows

    table = args.csv or str(Path(args.out).with_suffix(".csv"))
    check_targets([args.out, table])
    check_picture(args.out)
    cluster = resolve_cluster(args.cluster)
    wanted = points(args.models.split(","), args.layers, args.methods.split(","), cluster, parse_mesh(args.mesh), args.seconds)
    rows = list(load_rows(table))
    with status(args, "searching ...") as line:
        for row in measure(wanted, rows, cluster, status_text(line)):
            rows.append(row)
            save_rows(rows, table)  # after each row, so that an interrupted measurement can be continued
    asked = [row for row in rows if row.point in wanted]
    draw_search_time(asked, args.out)
    show(args, show_rows(asked), f"wrote {args.out} and {table}")
    return {"out": args.out, "csv": table, "rows": rows_json(asked)}
