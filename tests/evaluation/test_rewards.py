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
from functools import partial

import numpy as np
import pytest
from datasets import Dataset
from PIL import Image
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

from hf_vg.evaluation import (
    DocumentFrequencies,
    bleu_reward,
    caption_scores,
    cider_reward,
    document_frequencies,
    meteor_reward,
    pointing_reward,
)
from tests.interpretation.any_processors import tokenizer


CAPTIONS = [["a dog runs", "a brown dog"], ["a cat sleeps", "the cat"], ["two birds sing", "birds"]]
SAID = ["A dog runs.", "a brown cat", "birds"]
REWARDS = {
    "cider_d": partial(cider_reward, df=document_frequencies(CAPTIONS)),
    "bleu4": bleu_reward,
    "bleu2": partial(bleu_reward, order=2),
    "meteor_python": meteor_reward,
}


@pytest.mark.parametrize("name", REWARDS)
class TestCaptionRewards:
    def test_equal_the_scores_of_captions(self, name):
        # As TRL calls a reward: everything by name, with columns that it has no use for.
        actual = REWARDS[name](
            prompts=["?"] * 3, completions=SAID, completion_ids=[[1]] * 3, references=CAPTIONS, trainer_state=None
        )
        metric = {"cider_d": "cider", "bleu4": "bleu", "bleu2": "bleu"}.get(name, name)
        expected = caption_scores(SAID, CAPTIONS, (metric,), document_frequencies(CAPTIONS))[name]
        assert actual == pytest.approx(expected.tolist()) and all(type(score) is float for score in actual)
        assert actual[0] > actual[1]

    def test_conversations(self, name):
        plain = REWARDS[name](SAID, references=CAPTIONS)
        for content in (lambda text: text, lambda text: [{"type": "text", "text": text}]):
            chats = [[{"role": "assistant", "content": content(text)}] for text in SAID]
            assert REWARDS[name](chats, references=CAPTIONS) == plain
        assert REWARDS[name]([[], "", [{"role": "assistant", "content": None}]], references=CAPTIONS) == [0, 0, 0]
        assert REWARDS[name]([], references=[]) == []

    def test_each_text_is_split_once(self, name):
        seen = []

        def split(text):
            seen.append(text)
            return text.split()

        REWARDS[name](SAID[1:] * 8, references=CAPTIONS[1:] * 8, tokenize=split)
        assert sorted(seen) == sorted({*SAID[1:], *CAPTIONS[1], *CAPTIONS[2]})

    def test_rows_without_references(self, name):
        with pytest.raises(ValueError, match=r"references\[1\] is empty"):
            REWARDS[name](SAID, references=[CAPTIONS[0], [], CAPTIONS[2]])


def test_wrong_settings():
    with pytest.raises(ValueError, match="needs the document frequencies"):
        cider_reward(SAID, CAPTIONS)
    with pytest.raises(ValueError, match="`order` must be 1, 2, 3 or 4, got 5"):
        bleu_reward(SAID, CAPTIONS, order=5)


class TestDocumentFrequencies:
    def test_a_file_holds_them_all(self, tmp_path):
        frequencies = document_frequencies([*CAPTIONS, ["ein Hündchen läuft", "它 跑"]])
        frequencies.save(tmp_path / "new" / "frequencies.json")
        assert DocumentFrequencies.load(tmp_path / "new" / "frequencies.json") == frequencies
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["frequencies.json"]

    def test_what_cannot_be_saved_changes_nothing(self, tmp_path):
        file = tmp_path / "frequencies.json"
        document_frequencies(CAPTIONS).save(file)
        before = file.read_bytes()
        with pytest.raises(ValueError, match="words with spaces"):
            DocumentFrequencies({("a dog",): 1}, 2).save(file)
        assert file.read_bytes() == before

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "is not a JSON file"),
            ('{"num_images": 3, "counts": {"a": 1}', "is not a JSON file"),
            ("[" * 100_000, "is not a JSON file"),
            ("\udc80", "is not a JSON file"),
            ("[1, 2]", "has no document frequencies"),
            ('{"counts": {"a": 1}}', "has no document frequencies"),
            ('{"num_images": true, "counts": {"a": 1}}', "has no document frequencies"),
            ('{"num_images": 3, "counts": {"a dog": 4}}', "the count of 'a dog' must be from 1 to 3, got 4"),
            ('{"num_images": 3, "counts": {"a": "2"}}', "the count of 'a' must be from 1 to 3, got '2'"),
            ('{"num_images": 3, "counts": {"a": NaN}}', "must be from 1 to 3"),
        ],
    )
    def test_a_bad_file_is_named(self, text, message, tmp_path):
        file = tmp_path / "bad.json"
        file.write_bytes(text.encode(errors="surrogateescape"))
        with pytest.raises(ValueError, match=message) as error:
            DocumentFrequencies.load(file)
        assert str(file) in str(error.value) and len(str(error.value)) < 400
        with pytest.raises(FileNotFoundError):
            DocumentFrequencies.load(tmp_path / "none.json")


class TestPointing:
    boxes = [[[0, 0, 50, 50], [60, 60, 80, 90]]]

    @pytest.mark.parametrize(
        ("text", "scale", "reward"),
        [
            ("[10, 10, 30, 30]", None, 1),
            ("(10,10,30,30) and [90, 0, 100, 10]", None, 0.5),
            ('[{"bbox_2d": [65.5, 70, 75, 80], "label": "dog"}]', None, 1),
            ("[50, 100, 150, 200]", 1000, 1),
            ("[500, 100, 900, 200]", 1000, 0),
            ("[0.1, 0.1, 0.2, 0.4]", 1, 1),
            ("<loc0100><loc0614><loc0200><loc0819> dog", None, 0),  # top, left, bottom, right: at (140, 15)
            ("<loc0614><loc0307><loc0819><loc0409> dog", None, 1),  # at (70, 70) of 200 x 100
            ("dog<loc_300><loc_600><loc_400><loc_900>", None, 1),
            ("dog<loc_800><loc_600><loc_900><loc_900>", None, 0),
            ("a dog at 10, 10, 30, 30", None, 0),
            ("[1, 2, 3]", None, 0),
        ],
    )
    def test_boxes_in_text(self, text, scale, reward):
        for completion in (text, [{"role": "assistant", "content": text}]):
            actual = pointing_reward([completion], boxes=self.boxes, image_size=[(200, 100)], scale=scale, other=[1])
            assert actual == [reward]
        images = [Image.new("RGB", (200, 100))]
        assert pointing_reward([text], boxes=self.boxes, image=images, scale=scale) == [reward]

    def test_maps(self):
        inside, outside = np.zeros((4, 8)), np.zeros((4, 8))
        inside[1, 1], outside[0, 7] = 1, 1
        given = {"boxes": self.boxes * 3, "image_size": [(200, 100)] * 3}
        maps = [inside, np.stack([inside, outside]), outside]
        assert pointing_reward(["", "", ""], maps=maps, **given) == [1, 0.5, 0]

    def test_missing_columns(self):
        with pytest.raises(ValueError, match="needs a column `image_size`"):
            pointing_reward(["[1, 1, 2, 2]"], boxes=self.boxes)
        with pytest.raises(ValueError, match="1 completions, but 2 rows of `boxes`"):
            pointing_reward([""], boxes=self.boxes * 2, image_size=[(9, 9)])


@pytest.mark.parametrize("conversational", [False, True])
def test_trl_trains_for_them(tmp_path, conversational):
    trl = pytest.importorskip("trl", reason="needs trl, of hf-vg[trl]")
    set_seed(0)
    words = tokenizer()
    words.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    words.padding_side = "left"
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=100, **sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2))
    prompts = ["what is it", "who is it"]
    rows = {
        "prompt": [[{"role": "user", "content": text}] for text in prompts] if conversational else prompts,
        "references": [["a", "ab a"], ["b a", "c"]],
        "boxes": [[[0, 0, 5, 5]]] * 2,
        "image_size": [[10, 10]] * 2,
    }
    document_frequencies(rows["references"]).save(tmp_path / "frequencies.json")
    df = DocumentFrequencies.load(tmp_path / "frequencies.json")
    args = trl.GRPOConfig(
        str(tmp_path / "trained"),
        **{"max_steps": 3, "per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 6},
        **{"logging_steps": 1, "save_strategy": "no", "use_cpu": True, "report_to": "none", "disable_tqdm": True},
        bf16=False,
        learning_rate=1e-2,
    )
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    rewards = [partial(cider_reward, df=df), bleu_reward, meteor_reward, pointing_reward]
    trainer = trl.GRPOTrainer(
        model, reward_funcs=rewards, args=args, train_dataset=Dataset.from_dict(rows), processing_class=words
    )
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert len(logged) == 3
    for name in ("cider_reward", "bleu_reward", "meteor_reward", "pointing_reward"):
        assert all(0 <= entry[f"rewards/{name}/mean"] <= 10 for entry in logged)
    assert any(entry["rewards/bleu_reward/mean"] > 0 for entry in logged)
    assert any((weight != before[name]).any() for name, weight in model.state_dict().items())
