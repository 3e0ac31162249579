"""What the site fetches for itself is the file on record, or the build says what is wrong."""

import hashlib
import io
import tarfile

import bundle
import pytest


@pytest.fixture
def file(tmp_path):
    """A file of a small package, with its checksum on record."""
    content = b"library"
    path = tmp_path / "package.tgz"
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo("package/library.js")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return bundle.File("library.js", path.as_uri(), "package/library.js", hashlib.sha256(content).hexdigest())


def other(file, **changes):
    return bundle.File(**(file.__dict__ | changes))


def test_a_file_is_fetched_once(file, tmp_path):
    found = bundle.fetch(file, tmp_path / "kept")
    assert found.read_bytes() == b"library"
    (tmp_path / "package.tgz").unlink()
    assert bundle.fetch(file, tmp_path / "kept") == found
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["library.js"]


def test_another_file_is_refused_and_not_kept(file, tmp_path):
    with pytest.raises(bundle.BundleError, match="instead of 0000"):
        bundle.fetch(other(file, sha256="0" * 64), tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_a_file_that_was_changed_on_disk_is_fetched_again(file, tmp_path):
    found = bundle.fetch(file, tmp_path / "kept")
    found.write_bytes(b"changed")
    assert bundle.fetch(file, tmp_path / "kept").read_bytes() == b"library"


@pytest.mark.parametrize("damage", ["gone", "no archive", "without the file"])
def test_what_cannot_be_fetched_is_named_with_what_to_do(file, tmp_path, damage):
    path = tmp_path / "package.tgz"
    if damage == "gone":
        path.unlink()
    elif damage == "no archive":
        path.write_bytes(b"no archive")
    else:
        file = other(file, member="package/missing.js")
    with pytest.raises(bundle.BundleError, match=r"cannot be fetched: .*; go online once, or put library\.js into"):
        bundle.fetch(file, tmp_path / "kept")


def test_every_file_on_record_has_a_name_of_its_own():
    assert len({file.name for file in bundle.FILES}) == len(bundle.FILES)
