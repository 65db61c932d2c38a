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
import re

import pytest
import torch
from huggingface_hub import ModelCard
from huggingface_hub.repocard import metadata_load
from huggingface_hub.repocard_data import model_index_to_eval_results

from hf_vg.auto import FAMILIES
from hf_vg.hub.card_texts import DATASETS, MODELS
from hf_vg.hub.cards import Run, model_card
from tests.hub.checkpoints import checkpoints
from tests.models import test_modeling_grounded_visual_bert as grounded_visual_bert
from tests.models import test_modeling_show_attend_tell as show_attend_tell
from tests.models import test_modeling_vse_scnlm as vse_scnlm


def snippet(card: ModelCard | str) -> str:
    (code,) = re.findall("```python\n(.*?)```", str(card), flags=re.DOTALL)
    return code


def test_every_published_class_has_texts():
    assert {model_class.__name__ for *_, models in FAMILIES for _, model_class in models} == set(MODELS)


@pytest.mark.parametrize("name", checkpoints())
def test_front_matter_is_valid_and_nothing_is_left_open(name, tmp_path):
    run = Run(
        dataset="scenes",
        hyperparameters={"learning rate": 1e-3},
        metrics={"test_bleu4": 0.25, "test_runtime": 3.0, "odd_score": 2, "nan": float("nan"), "loss_text": "x"},
        figure="attention.png",
        example="example.png",
        base_model="some/base",
    )
    card = model_card(checkpoints()[name].model, "user/model", run, tags="more")
    card.save(tmp_path / "README.md")
    loaded = ModelCard.load(tmp_path / "README.md")  # raises an error for invalid metadata
    assert loaded.data.to_dict() == card.data.to_dict()
    metadata = metadata_load(tmp_path / "README.md")
    assert metadata["library_name"] == "transformers" and metadata["license"] == "apache-2.0"
    assert metadata["pipeline_tag"] and {"hf_vg", "more"} <= set(metadata["tags"])
    assert metadata["base_model"] == "some/base" and "datasets" not in metadata and "model_name" not in metadata
    model_name, results = model_index_to_eval_results(metadata["model-index"])
    assert model_name == "model" and {(r.metric_name, r.metric_value) for r in results} == {
        ("BLEU-4", 25.0),
        ("odd score", 2.0),
    }
    assert all(result.task_type == metadata["pipeline_tag"] and result.dataset_name == "scenes" for result in results)
    text = card.text
    assert not re.search(r"\{\{|\}\}|\{%|None|Undefined|\n\n\n", text)
    assert "| BLEU-4 | 25.0 |" in text and "(attention.png)" in text and "@" in text and "Apache-2.0" in text
    compile(snippet(card), "snippet", "exec")


@pytest.mark.parametrize(
    "model",
    [
        lambda: show_attend_tell.ShowAttendTellForConditionalGeneration(
            show_attend_tell.tiny_config(backbone_config=None, freeze_backbone=True)
        ),
        lambda: vse_scnlm.VseScnlmModel(vse_scnlm.tiny_config(backbone_config=None, freeze_backbone=True)),
        lambda: vse_scnlm.tiny_captioner(backbone_config=None, freeze_backbone=True),
        lambda: grounded_visual_bert.tiny_model(grounded_visual_bert.GroundedVisualBertModel, backbone_config=None),
        lambda: grounded_visual_bert.tiny_model(
            grounded_visual_bert.GroundedVisualBertForReferringExpression, backbone_config=None
        ),
    ],
    ids=["captioner", "space", "describer", "visual_bert", "referring"],
)
def test_models_that_see_no_pixels_have_a_snippet_that_runs(model, tmp_path, capsys):
    torch.manual_seed(0)
    model = model()
    model_card(model, str(tmp_path)).save(tmp_path / "README.md")
    model.save_pretrained(tmp_path)
    if model.config.model_type == "grounded_visual_bert":
        grounded_visual_bert.tiny_processor(tmp_path).save_pretrained(tmp_path)
    elif model.config.model_type == "vse_scnlm":
        vse_scnlm.tiny_processor().save_pretrained(tmp_path)
    else:
        show_attend_tell.tiny_processor().save_pretrained(tmp_path)
    exec(snippet((tmp_path / "README.md").read_text()), {})
    assert capsys.readouterr().out.strip()


def test_a_card_of_its_owner_is_kept(tmp_path):
    (tmp_path / "README.md").write_text("Mine.")
    checkpoints()["vgg"].model.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "Mine."


@pytest.mark.parametrize("name", checkpoints())
def test_a_model_saved_by_its_user_has_a_short_card_whose_code_runs(name, tmp_path, capsys):
    checkpoint = checkpoints()[name]
    checkpoint.save(tmp_path)
    card = ModelCard.load(tmp_path / "README.md")
    assert card.data.library_name == "transformers" and card.data.pipeline_tag
    assert card.data.tags == ["hf_vg", checkpoint.model.config.model_type]
    code = snippet(card)
    assert str(tmp_path) in code and "trust_remote_code=True" in code
    exec(code.replace(", trust_remote_code=True", ""), {})
    assert capsys.readouterr().out.strip()


def test_datasets_of_the_hub_and_of_nobody():
    model = checkpoints()["show-attend-tell"].model
    card = model_card(model, "user/model", Run(dataset="somebody/photos", license="mit"))
    assert card.data.datasets == ["somebody/photos"] and card.data.license == "mit"
    assert "huggingface.co/datasets/somebody/photos" in card.text
    assert model_card(model, "user/model", Run(dataset="flickr8k")).data.license is None
    unknown = model_card(model, "user/model")
    assert "Not recorded" in unknown.text and unknown.data.eval_results is None
    assert "converted-thing" in model_card(model, "user/model", Run(converted_from="converted-thing")).text


def test_texts_name_what_recipes_have():
    assert {"scenes", "flickr8k", "flickr30k", "coco", "karpathy", "vqa", "refcoco+", "flickr30k_entities"} <= set(
        DATASETS
    )


def test_a_card_says_what_was_scored():
    run = Run(dataset="vqa", metrics={"vqa_accuracy": 0.5}, split="val2014", num_images=1234)
    card = model_card(checkpoints()["vqa"].model, "user/model", run)
    assert "1,234 images of the val2014 split" in card.text and "test split" not in card.text
    assert card.data.eval_results[0].dataset_split == "val2014"


@pytest.mark.parametrize(
    "hostile", ["<script>x</script>", "[a](javascript:b)", "a | b\n# c", '"); import os #', "`$x$`"]
)
def test_what_others_wrote_is_escaped(hostile, tmp_path):
    run = Run(dataset=hostile, metrics={hostile: 1.0}, hyperparameters={hostile: hostile}, converted_from=hostile)
    run.split = hostile
    for given in (run, Run(converted_from=hostile)):
        card = model_card(checkpoints()["vse"].model, f"user/{hostile}", given)
        card.save(tmp_path / "README.md")
        prose = re.sub("```python\n.*?```", "", card.text, flags=re.DOTALL)
        assert hostile not in prose and "\n# c" not in prose
        assert not re.search(r"(?<!\\)(<script|\]\(javascript|\$x)", prose) and "| a | b" not in prose
        compile(snippet(card), "snippet", "exec")
        assert "import os" not in [line.strip() for line in snippet(card).split(";")]
