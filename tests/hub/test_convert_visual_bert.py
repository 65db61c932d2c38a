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
"""Published VisualBERT weights are converted without any change."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from transformers import (
    AutoModel,
    AutoProcessor,
    BertTokenizerFast,
    ResNetBackbone,
    ResNetConfig,
    VisualBertConfig,
    VisualBertForPreTraining,
    VisualBertForQuestionAnswering,
    VisualBertModel,
)

from hf_vg.hub.convert_visual_bert import main
from hf_vg.models.grounded_visual_bert import GroundedVisualBertForVGP, GroundedVisualBertModel
from hf_vg.models.vgg import VggBackbone, VggConfig
from hf_vg.reports.caption_report import escape_markdown
from tests.common import random_images
from tests.models.test_modeling_grounded_visual_bert import SIZES, WORDS


# Every published VisualBERT has heads of 64 numbers. The tensors do not determine this.
SMALL = {**SIZES, "hidden_size": 128, "num_attention_heads": 2, "num_hidden_layers": 2}
INPUTS = {
    "input_ids": torch.tensor([[2, 5, 6, 8, 3]]),
    "visual_embeds": torch.randn(1, 3, 7, generator=torch.Generator().manual_seed(1)),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text("\n".join(WORDS))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    return str(folder)


def visual_bert(model_class=VisualBertForPreTraining, **sizes):
    torch.manual_seed(0)
    return model_class(VisualBertConfig(**SMALL | sizes, visual_embedding_dim=7, initializer_range=0.3)).eval()


def as_the_authors_name_them(model: VisualBertForPreTraining) -> dict[str, torch.Tensor]:
    """The weight names of files such as `vqa_coco_pre_trained.th`."""
    names = {
        "visual_bert.embeddings.visual_token_type_embeddings": "bert.bert.embeddings.token_type_embeddings_visual",
        "visual_bert.embeddings.visual_position_embeddings": "bert.bert.embeddings.position_embeddings_visual",
        "visual_bert.embeddings.visual_projection": "bert.bert.embeddings.projection",
        "visual_bert.": "bert.bert.",
        "cls.": "bert.cls.",
    }
    renamed = {}
    for name, tensor in model.state_dict().items():
        ours = next(prefix for prefix in names if name.startswith(prefix))
        renamed[name.replace(ours, names[ours], 1)] = tensor.clone()
    renamed["detector.backbone.weight"] = torch.zeros(2)  # checkpoints for VCR also contain their detector
    return renamed


def check(folder: Path, original: VisualBertModel):
    model = AutoModel.from_pretrained(folder)
    assert type(model) is GroundedVisualBertModel and model.config.visual_embedding_dim == 7
    assert model.config.pad_token_id == 0 and model.config.mask_token_id == WORDS.index("[MASK]")
    with torch.no_grad():
        expected, actual = original(**INPUTS), model(**INPUTS)
    torch.testing.assert_close(actual.last_hidden_state, expected.last_hidden_state)
    torch.testing.assert_close(actual.pooler_output, expected.pooler_output)
    assert "VisualBERT's " in (folder / "README.md").read_text()


@pytest.mark.parametrize("ending", [".th", ".safetensors"])
def test_weights_of_the_authors(ending, tokenizer, tmp_path):
    original, file = visual_bert(), tmp_path / f"vqa_coco_pre_trained{ending}"
    tensors = as_the_authors_name_them(original)
    if ending == ".safetensors":
        save_file(tensors, file)
    else:
        torch.save(tensors, file, _use_new_zipfile_serialization=False)  # like torch in 2019
    main(["--checkpoint", str(file), "--output_dir", str(tmp_path / "out"), "--tokenizer", tokenizer])
    check(tmp_path / "out", original.visual_bert)
    assert escape_markdown(file.name) in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("model_class", [VisualBertModel, VisualBertForPreTraining, VisualBertForQuestionAnswering])
def test_folders_of_transformers(model_class, tokenizer, tmp_path):
    original = visual_bert(model_class)
    original.save_pretrained(tmp_path / "theirs")
    main(["--checkpoint", str(tmp_path / "theirs"), "--output_dir", str(tmp_path / "out"), "--tokenizer", tokenizer])
    check(tmp_path / "out", original.base_model)


def test_heads_of_a_folder_may_have_any_size(tokenizer, tmp_path):
    original = visual_bert(VisualBertModel, hidden_size=200, num_attention_heads=4)
    original.save_pretrained(tmp_path / "theirs")
    main(["--checkpoint", str(tmp_path / "theirs"), "--output_dir", str(tmp_path / "out"), "--tokenizer", tokenizer])
    check(tmp_path / "out", original)


@pytest.mark.parametrize("kind", ["vgg", "resnet"])
def test_with_a_backbone_it_sees_pixels(kind, tokenizer, tmp_path):
    from transformers import CLIPImageProcessorPil

    original = visual_bert(VisualBertModel)
    original.save_pretrained(tmp_path / "theirs")
    if kind == "vgg":
        backbone = VggBackbone(VggConfig(depths=[1], hidden_sizes=[4]))
    else:
        backbone = ResNetBackbone(ResNetConfig(embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1]))
    backbone.save_pretrained(tmp_path / "backbone")
    CLIPImageProcessorPil(image_mean=[0.1, 0.2, 0.3]).save_pretrained(tmp_path / "backbone")
    options = ["--tokenizer", tokenizer, "--backbone", str(tmp_path / "backbone"), "--image_size", "16"]
    main(["--checkpoint", str(tmp_path / "theirs"), "--output_dir", str(tmp_path / "out"), *options])
    check(tmp_path / "out", original)
    # As a recipe starts from it.
    model = GroundedVisualBertForVGP.from_pretrained(tmp_path / "out").eval()
    for name, tensor in backbone.state_dict().items():
        assert torch.equal(model.visual_bert.region_encoder.image_encoder.backbone.state_dict()[name], tensor), name
    processor = AutoProcessor.from_pretrained(tmp_path / "out")
    assert list(processor.image_processor.image_mean) == [0.1, 0.2, 0.3]
    inputs = processor(images=random_images(1, 20), text=["a red circle"], return_tensors="pt")
    assert inputs["pixel_values"].shape[-2:] == (16, 16)
    with torch.no_grad():
        assert torch.isfinite(model(**inputs).logits).all()
