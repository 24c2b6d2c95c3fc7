"""Which code is the user's."""

from pathlib import Path

from planner.frontend.tracing.source import _folders


def test_a_library_is_known_by_the_link_that_leads_to_it_and_by_its_own_place(tmp_path: Path) -> None:
    place, link = tmp_path / "place", tmp_path / "link"
    place.mkdir()
    link.symlink_to(place)
    for way in (place, link):
        assert str(way / "torch" / "functional.py").startswith(_folders(str(link)))
    assert not str(tmp_path / "place2" / "model.py").startswith(_folders(str(link)))
