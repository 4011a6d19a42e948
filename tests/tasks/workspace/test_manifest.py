"""Manifests are checked against the files that they name."""

import os

from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.manifest import Manifest, is_whole, manifest_reference, read_manifest, write_manifest
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.stage_files import KEY


def write_product(folder):
    path = folder / "manifest.json"
    for name in ("one.txt", "below/two.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    files = [file for file in tree_files(folder) if file != path]
    write_manifest(path, KEY, files, {"rows": 5}, fitted_on=[])
    return path


def test_a_manifest_is_checked_against_its_files(tmp_path):
    path = write_product(tmp_path)
    manifest = read_manifest(path)
    assert manifest is not None
    assert is_whole(path, manifest)
    assert sorted(manifest.files) == ["below/two.txt", "one.txt"]
    reference = manifest_reference(Workspace(tmp_path), path, "product", manifest)
    assert (reference.rows, reference.bytes, reference.fingerprint) == (5, 20, manifest.content)

    (tmp_path / "one.txt").write_text("longer than before")
    assert not is_whole(path, manifest)
    (tmp_path / "one.txt").write_text("one.txt")
    assert is_whole(path, manifest)
    (tmp_path / "below" / "two.txt").unlink()
    assert not is_whole(path, manifest)


def test_a_manifest_s_content_is_that_of_its_files(tmp_path):
    one, other = (read_manifest(write_product(tmp_path / name)) for name in "ab")
    assert one is not None
    assert one == other
    changed = one.files | {"one.txt": one.files["one.txt"].model_copy(update={"sha256": "0"})}
    for change in ({"files": changed}, {"details": {"rows": 6}}):
        assert one.model_copy(update=change).content != one.content
    nested = Manifest(key=KEY, files={}, details={"statistics": {"x": (0.5, 1.0)}})
    assert Manifest.model_validate_json(nested.model_dump_json()).content == nested.content


def test_an_unreadable_manifest_is_none(tmp_path):
    path = tmp_path / "manifest.json"
    assert read_manifest(path) is None
    for content in (b"", b"{", b"[]", b'{"key": 1, "files": {}}', b"\xff\xfe"):
        path.write_bytes(content)
        assert read_manifest(path) is None


def test_a_flipped_bit_in_a_manifest_or_its_files_is_found_or_harmless(tmp_path):
    path = write_product(tmp_path)
    whole = read_manifest(path)
    assert whole is not None
    for target, step in ((path, 7), (tmp_path / "one.txt", 1)):
        content = target.read_bytes()
        for bit in range(0, 8 * len(content), step):
            damaged = bytearray(content)
            damaged[bit // 8] ^= 1 << bit % 8
            target.write_bytes(damaged)
            os.utime(target, (0, bit))  # a digest is remembered until the time of change is another
            found = read_manifest(path)
            if found is not None and is_whole(path, found):
                assert target == path
                assert found == whole
        target.write_bytes(content)
