"""Zip archives that every reader reads alike.

Python's reader looks for the directory before the end of the file; torch's (miniz) goes to the offset that the end names, takes names without regard to
case, and knows no other.  An archive with two directories would be checked by one and run by the other, so only those pass that end in one directory,
at the offset that is named, without a comment.

... members ... | directory | (64-bit end, its locator) | end
                ^ offset      ^ offset + size
"""

from __future__ import annotations

import struct
import zipfile
from typing import IO

from planner.ir.errors import InvalidFile, Untrusted

__all__ = ["members_of"]

_END, _LOCATOR, _END_64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sLQL"), struct.Struct("<4sQ2H2L4Q")
_MOST_32 = 0xFFFFFFFF


def members_of(file: IO[bytes], archive: zipfile.ZipFile, name: str, *, most: int, most_bytes: int) -> list[zipfile.ZipInfo]:
    """The members of an archive.

    Args:
        file: it, opened.   archive: the same, read by Python.   name: what it is called in messages.   most, most_bytes: members, and bytes unpacked.

    Raises:
        Untrusted: another reader could see other members.   InvalidFile: beyond the limits.
    """
    members = archive.infolist()
    if len(members) > most or sum(member.file_size for member in members) > most_bytes:
        raise InvalidFile(f"{name} holds more than {most} members or unpacks to more than {most_bytes} bytes; send a smaller program")
    names = {member.filename.lower() for member in members}
    if not _one_directory(file) or len(names) < len(members) or any(member.filename != member.orig_filename for member in members):
        raise Untrusted(
            f"{name} is an archive that two readers could read differently (names twice, two directories); write it anew with torch.export.save"
        )
    return members


def _one_directory(file: IO[bytes]) -> bool:
    """Whether the archive ends in its one directory, which lies where its end says."""
    size = file.seek(0, 2)
    if size < _END.size:
        return False
    end = size - _END.size
    mark, _, _, _, _, directory_bytes, offset, comment = _END.unpack(_read(file, end, _END.size))
    if mark != b"PK\5\6" or comment:
        return False
    at = end - _LOCATOR.size
    if at >= _END_64.size and (locator := _LOCATOR.unpack(_read(file, at, _LOCATOR.size)))[0] == b"PK\6\7":
        end = at - _END_64.size
        mark, length, _, _, _, _, _, _, directory_64, offset_64 = _END_64.unpack(_read(file, end, _END_64.size))
        if mark != b"PK\6\6" or length != _END_64.size - 12 or locator[2] != end:
            return False
        if directory_bytes not in (directory_64, _MOST_32) or offset not in (offset_64, _MOST_32):
            return False
        directory_bytes, offset = directory_64, offset_64
    return bool(offset + directory_bytes == end)


def _read(file: IO[bytes], offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)
