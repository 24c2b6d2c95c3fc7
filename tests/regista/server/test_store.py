"""Files that a server takes: whole or not at all, and never one that could run code."""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest

from planner.ir.errors import InvalidFile, RegistaError, Untrusted
from planner.ir.units import GIB
from regista.server.store import FileStore, RequestStore
from regista.server.store.kinds import check_kind
from regista.server.work.checking import check_apart
from regista.wire import Outcome, Request, State


def put(store: FileStore, content: bytes, digest: str | None = None) -> str:
    digest = digest or hashlib.sha256(content).hexdigest()
    upload = store.begin(digest)
    try:
        upload.add(content)
        upload.finish()
    finally:
        upload.close()
    return digest


def test_a_file_is_kept_by_its_content_and_a_half_written_one_not_at_all(tmp_path: Path):
    store = FileStore(tmp_path / "files")
    digest = put(store, b"[model]\n")
    assert store.path(digest).read_bytes() == b"[model]\n"
    with pytest.raises(InvalidFile, match="half-written or damaged"):
        put(store, b"[mod", digest="00" * 32)
    assert [path.name for path in store.folder.rglob("*") if path.is_file()] == [digest]


@pytest.mark.parametrize("digest", ["", "..", "../../etc/passwd", "AB" * 32, "ab" * 31])
def test_a_name_that_is_no_digest_is_refused(tmp_path: Path, digest: str):
    with pytest.raises(InvalidFile, match="SHA-256"):
        FileStore(tmp_path).path(digest)


def test_files_that_no_request_uses_are_swept_and_those_in_use_are_not(tmp_path: Path):
    files, requests = FileStore(tmp_path / "files"), RequestStore(tmp_path / "requests")
    used, unused, left = put(files, b"used"), put(files, b"unused"), put(files, b"left")
    requests.add("0" * 32, Request(verb="diff", arguments={"a": "a", "b": "a"}, files={"a": used}), files)
    requests.end("0" * 32, Outcome(state=State.DONE, files={"out": left}), files)
    files.sweep(older_than_s=2**33)
    assert files.has(used) and files.has(left) and not files.has(unused)
    requests.remove("0" * 32)
    files.sweep(older_than_s=2**33)
    assert not files.has(used) and not files.has(left)


def test_a_file_that_would_fill_the_disk_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = FileStore(tmp_path / "files")
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10 * GIB, 8 * GIB, 2 * GIB))  # type: ignore[attr-defined]
    store.check_room(GIB)
    with pytest.raises(InvalidFile, match=f"has {2 * GIB} free"):
        store.check_room(GIB + 1)


def test_a_request_that_cannot_be_kept_leaves_nothing(tmp_path: Path):
    files, requests = FileStore(tmp_path / "files"), RequestStore(tmp_path / "requests")
    with pytest.raises(OSError):
        requests.add("0" * 32, Request(verb="diff", files={"a": "00" * 32}), files)
    assert requests.newest() == []


def test_a_file_that_a_client_asks_for_is_not_swept_before_its_request_comes(tmp_path: Path):
    store = FileStore(tmp_path / "files")
    digest = put(store, b"old")
    os.utime(store.path(digest), (0, 0))
    assert store.has(digest)
    store.sweep(older_than_s=2.0)
    assert store.has(digest)


def test_a_request_that_a_crash_has_cut_short_is_gone_and_the_others_come_back_in_order(tmp_path: Path):
    files, requests = FileStore(tmp_path / "files"), RequestStore(tmp_path / "requests")
    for number in range(3):
        requests.add(f"{number:032x}", Request(verb="clusters"), files)
        os.utime(requests.folder / f"{number:032x}", ns=(number, number))
    (requests.folder / f"{1:032x}" / "request.json").write_text('{"wire"')
    assert [name for name, _ in requests.open_ones()] == [f"{0:032x}", f"{2:032x}"]
    assert not (requests.folder / f"{1:032x}").exists()


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch /tmp/evil",)


def archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def saved(value: object, name: str = "data.pkl") -> bytes:
    """As torch.save writes it."""
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as file:
        file.writestr(f"archive/{name}", pickle.dumps(value, protocol=2))
    return inner.getvalue()


MODEL = {"graph_module": {"graph": {"nodes": [{"target": "torch.ops.aten.relu.default"}]}}, "guards_code": ["L['x'].size()[0] == 8"]}
SOUND = {"m/models/model.json": json.dumps(MODEL).encode(), "m/byteorder": b"little", "m/data/weights/weight_0": b"\x80\x04\x00"}


def edited(**changes: object) -> bytes:
    return json.dumps({**MODEL, **changes}).encode()


@pytest.mark.parametrize(
    ("members", "law"),
    [
        ({"m/models/model.json": edited(target="torch.os.system")}, "calls 'torch.os.system'"),
        ({"m/models/model.json": edited(target="math.__loader__")}, "no op of aten"),
        ({"m/models/model.json": edited(target="#extension:x")}, "no op of aten"),
        ({"m/models/model.json": edited(expr_str="__import__('os').system('id')")}, "symbolic extents"),
        ({"m/models/model.json": edited(spec='{"__enum__": true, "fqn": "evil:E"}')}, "class of its own"),
        ({"m/models/model.json": edited(guards_code=["__import__('os')"])}, "more than comparisons"),
        ({"m/data/weights/model_weights_config.json": json.dumps({"config": {"w": {"use_pickle": True}}}).encode()}, "pickles its tensors"),
        ({"m/data/sample_inputs/model.pt": saved(Evil())}, "is no tensor"),
        ({"m/data/sample_inputs/model.pt": pickle.dumps(Evil(), protocol=4)}, "is no tensor"),
        ({"m/data/constants/custom_obj_0": pickle.dumps(Evil())}, "is no tensor"),
        ({"m/data/aotinductor/model/code.so": b"\x7fELF"}, "which is code"),
        ({"m/extra/more.bin": b"\x00\xff" * 9000}, "torch.export does not write"),
        ({"../m/x.json": b"{}"}, "leads out of it"),
        ({"m/models/model.json": b"[" * 5000}, "JSON"),
        # torch 2.13 ran the code of each of these, though their names or forms are none that torch.export writes
        ({"m/data/sample_inputs/model.pt": pickle.dumps(Evil(), protocol=0)}, "is no tensor"),
        ({"m/data/sample_inputs/model.pt": pickle.dumps(1, 2) + pickle.dumps(Evil(), 2)}, "is no tensor"),
        ({"m/data/sample_inputs/model.pt": saved(Evil(), "data.PKL")}, "is no tensor"),
        ({"m/models/model.JSON": edited(target="torch.os.system")}, "read differently"),
        ({"m/models/evil": edited(target="torch.os.system")}, "does not write"),
        # operations that read and write files of the host
        ({"m/models/model.json": edited(target="torch.ops.aten.from_file.default")}, "no op of aten"),
        ({"m/models/model.json": edited(target="torch.ops.aten.save.default")}, "no op of aten"),
        ({"m/models/model.json": edited(as_operator="torch.os.system")}, "no op of aten"),
    ],
)
def test_an_exported_program_that_could_run_code_is_refused_before_torch_reads_it(tmp_path: Path, members: dict[str, bytes], law: str):
    check_kind(archive(tmp_path / "sound.pt2", SOUND))
    with pytest.raises((Untrusted, InvalidFile), match=law):
        check_kind(archive(tmp_path / "evil.pt2", {**SOUND, **members}))


def test_an_archive_that_another_reader_could_read_differently_is_refused(tmp_path: Path):
    sound = archive(tmp_path / "sound.pt2", SOUND).read_bytes()
    for changed in (b"PK\3\4 before the first member" + sound, sound[:-2] + b"\5\0after"):
        (tmp_path / "odd.pt2").write_bytes(changed)
        assert zipfile.ZipFile(tmp_path / "odd.pt2").testzip() is None  # Python's reader minds neither
        with pytest.raises(Untrusted, match="two readers could read differently"):
            check_kind(tmp_path / "odd.pt2")


@pytest.mark.parametrize(
    ("content", "law"),
    [
        (pickle.dumps(Evil()), "is a pickle"),
        (pickle.dumps([1], protocol=2), "is a pickle"),
        (b"\x7fELF\0\0", "neither text"),
        (b"PK\x03\x04 cut", "cut short"),
    ],
)
def test_other_kinds_of_files_are_refused(tmp_path: Path, content: bytes, law: str):
    with pytest.raises(RegistaError, match=law):
        put(FileStore(tmp_path), content)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.thorough
@pytest.mark.processes
def test_a_program_that_unpacks_to_more_than_it_seems_ends_the_process_that_checks_it(tmp_path: Path):
    bomb = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("m/models/model.json", b"[" + b"[]," * (20 << 20) + b"[]]")
    assert bomb.stat().st_size < 100_000
    context = multiprocessing.get_context("forkserver")
    with pytest.raises(InvalidFile, match="could not be checked within 60 s"):
        check_apart(context, bomb, memory_bytes=GIB // 2)
    check_apart(context, archive(tmp_path / "sound.pt2", SOUND))
    with pytest.raises(Untrusted, match=r"calls 'torch\.os\.system'"):
        check_apart(context, archive(tmp_path / "evil.pt2", {**SOUND, "m/models/model.json": edited(target="torch.os.system")}))


@pytest.mark.thorough
def test_what_torch_exports_is_taken(tmp_path: Path):
    import torch
    from torch import nn

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(self.body(x)[:, : 2 + 3], y)

    path = tmp_path / "m.pt2"
    torch.export.save(torch.export.export(Step(), (torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,)))), path)
    check_kind(path)
