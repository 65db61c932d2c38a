# Copyright 2026 The hf_vg maintainers. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
import os
from pathlib import Path

import pytest

import hf_vg
from hf_vg.data.files import atomic_write


class TestAtomicWrite:
    def test_makes_folders_and_replaces_what_was_there(self, tmp_path):
        path = tmp_path / "new" / "deep" / "file.txt"
        for text in ("first", "second"):
            with atomic_write(path) as file:
                file.write_text(text)
                assert not path.exists() or path.read_text() == "first"
        assert path.read_text() == "second"
        assert os.listdir(path.parent) == ["file.txt"]

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, MemoryError])
    def test_leaves_the_old_file_and_nothing_else_on_an_error(self, tmp_path, error):
        path = tmp_path / "file.txt"
        path.write_text("old")
        with pytest.raises(error), atomic_write(path) as file:
            file.write_text("half of the ne")
            raise error
        assert path.read_text() == "old"
        assert os.listdir(tmp_path) == ["file.txt"]

    def test_writers_of_one_file_do_not_meet(self, tmp_path):
        path = tmp_path / "file.txt"
        with atomic_write(path) as first, atomic_write(path) as second:
            assert first != second
            first.write_text("first")
            second.write_text("second")
        assert path.read_text() == "first"

    def test_names_may_be_as_long_as_the_file_system_allows(self, tmp_path):
        path = tmp_path / ("ü" * 120 + ".txt")
        with atomic_write(path) as file:
            file.write_text("text")
        assert path.read_text() == "text"

    def test_bytes_reach_the_disk_before_the_file_has_its_name(self, tmp_path, monkeypatch):
        calls = []
        sync, replace = os.fsync, os.replace
        monkeypatch.setattr(os, "fsync", lambda number: (calls.append("fsync"), sync(number)))
        monkeypatch.setattr(os, "replace", lambda *names: (calls.append("replace"), replace(*names)))
        with atomic_write(tmp_path / "file.txt") as file:
            file.write_text("text")
        assert calls == ["fsync", "replace"]

    def test_is_the_only_place_that_moves_files(self):
        package = Path(hf_vg.__file__).parent
        movers = {path.relative_to(package) for path in package.rglob("*.py") if "os.replace(" in path.read_text()}
        # Exceptions: `new_folder` of the converters and `save_model` of the trainer move whole folders.
        folders = {Path("hub/conversion.py"), Path("training/trainer.py")}
        assert movers == {Path("data/files.py"), *folders}
