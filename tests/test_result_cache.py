"""Results that are cached between commands, and when none are."""

from __future__ import annotations

import importlib.util

from wse_sim import result_cache as of_tests
from wse_sim.files import CACHE


def test_many_runs_with_a_store_of_their_own_keep_nothing_else(monkeypatch, tmp_path):
    """On a fresh copy of the module, the store of the tests caches nothing at any time."""
    spec = importlib.util.spec_from_file_location("kept_of_users", of_tests.__file__)
    assert spec is not None
    assert spec.loader is not None
    kept = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kept)
    monkeypatch.setenv(CACHE, str(tmp_path))
    assert kept.is_used()
    with kept.paused():
        assert not kept.is_used()
        with kept.paused():
            assert not kept.is_used()
        assert not kept.is_used()
    assert kept.is_used()


def test_values_are_made_anew_when_a_file_behind_a_link_changes(tmp_path, monkeypatch):
    """Kernels and files of wafers are behind links in a checkout; the hash of a package reads them, too."""
    package, behind = tmp_path / "package_with_a_link", tmp_path / "behind"
    behind.mkdir()
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "inside").symlink_to(behind)
    monkeypatch.syspath_prepend(str(tmp_path))
    hashes = []
    for text in ("a = 1", "a = 2"):
        (behind / "one.py").write_text(text)
        of_tests.sources.cache_clear()
        hashes.append(of_tests.sources("package_with_a_link"))
    of_tests.sources.cache_clear()
    assert hashes[0] != hashes[1]
