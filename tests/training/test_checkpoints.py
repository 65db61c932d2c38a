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
import hashlib
import json

import pytest
from safetensors.torch import load_file, save_file

from hf_vg.training.checkpoints import (
    changed_settings,
    check_weight_names,
    delete_checkpoint,
    file_digest,
    is_complete,
    last_complete_checkpoint,
    mark_complete,
    why_not_to_resume,
)
from tests.training.test_trainer import tiny_captioner


def test_a_checkpoint_is_complete_or_not(tmp_path):
    for step in (5, 10, 200):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights")
        mark_complete(folder)
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-200"
    (tmp_path / "checkpoint-200" / "model.safetensors").unlink()  # as a kill within its deletion leaves it
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-10"
    (tmp_path / "checkpoint-10" / "complete.json").write_text("{")
    assert last_complete_checkpoint(tmp_path).name == "checkpoint-5"
    delete_checkpoint(tmp_path / "checkpoint-5")
    assert last_complete_checkpoint(tmp_path) is None and last_complete_checkpoint(tmp_path / "absent") is None


class Counted:
    """A digest that notes how much it is given."""

    def __init__(self, digest, lengths: list[int]):
        self.digest, self.lengths = digest, lengths

    def update(self, content: bytes) -> None:
        self.lengths.append(len(content))
        self.digest.update(content)

    def hexdigest(self) -> str:
        return self.digest.hexdigest()


class TestResuming:
    @pytest.fixture
    def checkpoint(self, tmp_path):
        (tmp_path / "state.json").write_text("{}")
        (tmp_path / "model.safetensors").write_bytes(bytes(3_000_000))  # large enough to be sampled
        mark_complete(tmp_path)
        return tmp_path

    def test_nothing_speaks_against_a_checkpoint_as_it_was_written(self, checkpoint):
        (checkpoint / "README.md").write_text("A card may be written later.")
        assert is_complete(checkpoint) and why_not_to_resume(checkpoint) is None

    @pytest.mark.parametrize("place", [0, 2_999_999])
    def test_a_changed_byte_of_a_large_file_is_seen(self, checkpoint, place):
        with open(checkpoint / "model.safetensors", "r+b") as file:
            file.seek(place)
            file.write(b"x")
        assert "was changed after it was written: model.safetensors" in why_not_to_resume(checkpoint)

    def test_of_a_large_file_only_samples_are_read(self, tmp_path, monkeypatch):
        """The mark must cost under 1% of a save. benchmarks/checkpoints.py measures the time."""
        with open(tmp_path / "model.safetensors", "wb") as content:
            content.truncate(100_000_000)
        digested = []
        blake2b = hashlib.blake2b
        monkeypatch.setattr(hashlib, "blake2b", lambda **kwargs: Counted(blake2b(**kwargs), digested))
        file_digest(tmp_path / "model.safetensors")
        assert 0 < sum(digested) < 1_000_000

    @pytest.mark.parametrize("text", ["[]", "{ }"])
    def test_a_small_file_is_compared_as_a_whole(self, checkpoint, text):
        (checkpoint / "state.json").write_text(text)
        assert is_complete(checkpoint) and "state.json" in why_not_to_resume(checkpoint)

    def test_another_length_is_seen(self, checkpoint):
        with open(checkpoint / "model.safetensors", "ab") as file:
            file.write(b"x")
        assert "model.safetensors" in why_not_to_resume(checkpoint)

    def test_a_checkpoint_of_another_version_is_not_resumed_silently(self, checkpoint):
        mark = json.loads((checkpoint / "complete.json").read_text())
        (checkpoint / "complete.json").write_text(json.dumps({**mark, "hf_vg": "9.9"}))
        assert "was written by hf_vg 9.9" in why_not_to_resume(checkpoint)
        sizes = {"state.json": 2, "model.safetensors": 3_000_000}  # as version 0.1 wrote it
        (checkpoint / "complete.json").write_text(json.dumps(sizes))
        assert is_complete(checkpoint) and "was written by hf_vg 0.1," in why_not_to_resume(checkpoint)


@pytest.mark.parametrize("text", ["[", "5", "!!python/object/apply:os.system [x]", "[" * 5000, "\x01"])
def test_damaged_settings_are_named(tmp_path, text):
    (tmp_path / "training_config.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"training_config\.yaml is damaged: "):
        changed_settings(tmp_path, {"seed": 1})


def test_weights_with_other_names_are_refused(tmp_path):
    """Trainer would load what it knows, and leave the rest as it was drawn at random."""
    model = tiny_captioner()
    model.save_pretrained(tmp_path)
    check_weight_names(tmp_path, model)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    old = {name.replace("image_encoder.", ""): tensor for name, tensor in weights.items()}
    assert {*old} != {*weights}
    save_file(old, file)
    with pytest.raises(ValueError, match="cannot be resumed: .*ShowAttendTell"):
        check_weight_names(tmp_path, model)
