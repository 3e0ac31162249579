"""The library of the interactive figures is the one on record, or the build says what is wrong."""

import hashlib
import io
import tarfile

import bundle
import pytest


@pytest.fixture
def registry(tmp_path, monkeypatch):
    """A registry that gives a small package, with its checksum on record."""
    content = b"library"
    path = tmp_path / "package.tgz"
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo(f"package/{bundle.NAME}")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    monkeypatch.setattr(bundle, "_ADDRESS", path.as_uri())
    monkeypatch.setattr(bundle, "_SHA256", hashlib.sha256(content).hexdigest())
    return path


def test_the_bundle_is_fetched_once(registry, tmp_path):
    found = bundle.fetch(tmp_path / "kept")
    assert found.read_bytes() == b"library"
    registry.unlink()
    assert bundle.fetch(tmp_path / "kept") == found
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [bundle.NAME]


def test_another_file_is_refused_and_not_kept(registry, tmp_path, monkeypatch):
    monkeypatch.setattr(bundle, "_SHA256", "0" * 64)
    with pytest.raises(bundle.BundleError, match="instead of 0000"):
        bundle.fetch(tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_file_that_was_changed_on_disk_is_fetched_again(registry, tmp_path):
    bundle.fetch(tmp_path / "kept").write_bytes(b"changed")
    assert bundle.fetch(tmp_path / "kept").read_bytes() == b"library"


@pytest.mark.parametrize("content", [None, b"no archive"])
def test_a_registry_that_does_not_deliver_is_named(registry, tmp_path, content):
    registry.unlink() if content is None else registry.write_bytes(content)
    with pytest.raises(bundle.BundleError, match=r"cannot be fetched.*go online once"):
        bundle.fetch(tmp_path / "kept")
