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
"""The configs with the papers' settings: each is run once at a tiny size, on files in the published formats."""

import json
import os
import pickle
import re
import runpy
import sys
import tempfile

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from transformers import CLIPImageProcessorPil

from hf_vg import VggConfig, VggForImageClassification
from hf_vg.training import VgTrainer, VgTrainingArguments
from hf_vg.training.dry_run import tiny_backbone
from tests.checkpoints import save_regions
from tests.common import ROOT, start_process
from tests.data.test_detections import write_json, write_tsv
from tests.data.test_regions import write_entities


PAPER = ROOT / "recipes" / "configs" / "paper"
CONFIGS = sorted(path.stem for path in PAPER.glob("*.yaml"))
# One of each kind. The others have other data of the same format, or another objective.
FAST = (
    *("show_attend_tell_soft_flickr8k", "show_attend_tell_hard_coco", "spatial_transformer_coco", "vse_flickr8k"),
    *("grounded_encoder_att_cap2all", "grounded_encoder_cap2img", "scnlm_flickr30k", "vgp_direct", "vqa_v2"),
    "referring_detected",
)
# In the grammar of scenes, which needs no spaCy to be tagged.
CAPTIONS = ["A red circle .", "a big blue square", "Two green circles .", "A small red square .", "a circle"]
WORDS = sorted({word.lower() for caption in CAPTIONS for word in caption.split()} - {"."})
SPLITS = ["train"] * 6 + ["restval", "val", "val", "test", "test"]
# Widths, so that a step takes no time. What makes an experiment the paper's stays.
TINY = {
    "show_attend_tell": {"embedding_size": 6, "hidden_size": 8, "attention_size": 5},
    "spatial_transformer": {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "decoder_layers": 1},
    "grounded_encoder": {"hidden_size": 8, "image_head_size": 8, "attention_size": 4, "num_attention_rows": 2},
    "vse": {"hidden_size": 8},
    "scnlm": {"num_factors": 10},
}
FLAGS = {
    "show_attend_tell": ["--max_new_tokens", "5"],
    "scnlm": ["--tagger", "scenes"],
    "vqa": ["--dataloader_num_workers", "0"],
    "referring": ["--dataloader_num_workers", "0"],
}


def draw(path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(number).integers(0, 255, (30, 40, 3), dtype=np.uint8)).save(path)


def write_flickr8k(folder) -> None:
    names = [f"{number}_photo.jpg" for number in range(10)]
    for number, name in enumerate(names):
        draw(folder / "Images" / name, number)
    lines = [f"{name}#{index}\t{caption}" for name in names for index, caption in enumerate(CAPTIONS)]
    (folder / "Flickr8k.token.txt").write_text("\n".join(lines))
    for split, part in (("train", names[:6]), ("dev", names[6:8]), ("test", names[8:])):
        (folder / f"Flickr_8k.{split}Images.txt").write_text("\n".join(part))


def write_karpathy(folder, name: str, folder_of, name_of) -> None:
    rows = []
    for number, split in enumerate(SPLITS):
        draw(folder / (folder_of(split) or "images") / name_of(split, number), number)
        row = {"filename": name_of(split, number), "split": split, "imgid": number}
        row |= {"filepath": folder_of(split)} if folder_of(split) else {}
        row["sentences"] = [{"raw": caption, "tokens": caption.lower().split(" ")[:-1]} for caption in CAPTIONS]
        rows.append(row)
    (folder / name).write_text(json.dumps({"images": rows, "dataset": name}))


def coco_folder(split: str) -> str:
    return "train2014" if split == "train" else "val2014"


def coco_name(split: str, number: int) -> str:
    return f"COCO_{coco_folder(split)}_{number:012d}.jpg"


def write_region_files(data) -> None:
    entities, _ = write_entities(data / "flickr30k_entities", ("100", "200", "300", "400"))
    for image in (entities / "images").iterdir():
        (data / "flickr30k" / "images" / image.name).write_bytes(image.read_bytes())
    (data / "vgp").mkdir()
    header = "image,phrase1,phrase2,original_phrase1,original_phrase2,original_label,type_label"
    rows = [f"{name},men,people,Two men,Two people,Entailment,1" for name in (100, 200, 300, 400)]
    (data / "vgp" / "train_data.csv").write_text("\n".join([header, *rows]) + "\n")

    trained = [number for number, split in enumerate(SPLITS) if split == "train"]
    (data / "vqa").mkdir()
    for split, images in (("train2014", trained), ("val2014", [n for n in range(len(SPLITS)) if n not in trained])):
        asked = [{"question_id": 10 + n, "image_id": n, "question": "What color is it?"} for n in images]
        given = [
            {"question_id": 10 + n, "answers": [{"answer": "red"}] * 7 + [{"answer": "blue"}] * 3} for n in images
        ]
        questions = {"data_subtype": split, "data_type": "mscoco", "questions": asked}
        (data / "vqa" / f"v2_OpenEnded_mscoco_{split}_questions.json").write_text(json.dumps(questions))
        (data / "vqa" / f"v2_mscoco_{split}_annotations.json").write_text(json.dumps({"annotations": given}))

    (data / "refcoco+").mkdir()
    refs = [
        {"ref_id": n, "ann_id": n, "image_id": n, "split": split, "sentences": [{"sent": "red one"}, {"sent": "it"}]}
        for n, split in zip(trained, ["train"] * 3 + ["val", "testA", "testB"], strict=True)
    ]
    (data / "refcoco+" / "refs(unc).p").write_bytes(pickle.dumps(refs, protocol=2))
    instances = {
        "images": [{"id": n, "file_name": coco_name("train", n)} for n in trained],
        "annotations": [{"id": n, "image_id": n, "bbox": [2, 3, 20, 15]} for n in trained],
    }
    (data / "refcoco+" / "instances.json").write_text(json.dumps(instances))
    (data / "detections" / "vqa").mkdir(parents=True)
    boxes = [[index, 0, index + 10, 20] for index in range(12)]
    write_tsv(data / "detections" / "vqa" / "trainval.tsv.0", {n: boxes for n in range(len(SPLITS))})
    found = {n: [[1, 1, 10, 10], [2, 3, 21, 15]] for n in trained}
    write_json(data / "detections" / "res101_coco_minus_refer_notime_dets.json", found)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("papers")
    (folder / "temporary").mkdir()
    data, weights = folder / "data", folder / "weights"
    write_flickr8k(data / "flickr8k")
    write_karpathy(data / "flickr30k", "dataset_flickr30k.json", lambda split: "", lambda split, n: f"{n}.jpg")
    write_karpathy(data / "coco", "dataset_coco.json", coco_folder, coco_name)
    write_region_files(data)
    torch.manual_seed(0)
    for name in ("vgg11", "vgg19"):
        VggForImageClassification(VggConfig(depths=[1, 1], hidden_sizes=[4, 6], fc_size=7)).save_pretrained(
            weights / name
        )
        CLIPImageProcessorPil(size={"shortest_edge": 20}, crop_size={"height": 16, "width": 16}).save_pretrained(
            weights / name
        )
    tiny_backbone(weights / "resnet101")
    generator = np.random.default_rng(0)
    for size in (100, 300):
        lines = [" ".join([word, *(f"{x:.4f}" for x in generator.normal(size=size))]) for word in WORDS]
        (weights / f"glove.{size}d.txt").write_text("\n".join(lines) + "\n")
    save_regions(weights / "visualbert")
    save_regions(folder / "outputs" / "paper" / "vgp_rollout")
    return folder


def system_of(name: str) -> str:
    return next((system for system in (*TINY, *FLAGS) if name.startswith(system)), name)


def run_config(folder: str, name: str, log: str) -> None:
    """What a child process does: `make paper NAME=... ARGS=--dry_run`, at a tiny size."""
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(folder)
    tempfile.tempdir = f"{folder}/temporary"
    file, system = PAPER / f"{name}.yaml", system_of(name)
    fields = yaml.safe_load(file.read_text()).get("model", {})
    tiny = [(f"--model.{field}", str(v)) for field, v in TINY.get(system, {}).items() if field in fields]
    (recipe,) = re.findall("^# recipe: (.*)$", file.read_text(), re.MULTILINE)
    sys.argv = [str(ROOT / "recipes" / f"{recipe}.py"), "--config", str(file), "--dry_run"]
    sys.argv += [text for pair in tiny for text in pair] + FLAGS.get(system, [])
    runpy.run_path(sys.argv[0], run_name="__main__")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in FAST else [pytest.mark.slow]) for name in CONFIGS]
)
def test_every_config_runs(name, folder, tmp_path):
    process = start_process(run_config, str(folder), name, str(tmp_path / "log"))
    process.join()
    printed = (tmp_path / "log").read_text()
    assert process.exitcode == 0, printed
    assert "Dry run: one step of" in printed and "an evaluation (eval_loss " in printed, printed
    if name.startswith(("vse", "grounded_encoder", "scnlm")) and "glove" in (PAPER / f"{name}.yaml").read_text():
        assert "words have a GloVe vector" in printed


# What the papers, and the authors' code where they are silent, say.
FACTS = {
    "show_attend_tell_soft_flickr8k": {
        "optim": "rmsprop", "vocab_size": 10000, "max_length_difference": 0, "per_device_train_batch_size": 64,
        "model.hidden_size": 1800, "model.attention_type": "soft", "backbone": "weights/vgg19", "max_grad_norm": 0,
    },
    "show_attend_tell_hard_flickr30k": {"optim": "adamw_torch_fused", "model.attention_type": "hard"},
    "show_attend_tell_soft_coco": {"optim": "adamw_torch_fused", "learning_rate": "2e-4", "dataset": "karpathy"},
    "spatial_transformer_coco": {
        "model.hidden_size": 512, "model.encoder_layers": 2, "model.decoder_layers": 4, "learning_rate": "3e-4",
        "max_caption_words": 14, "model.dropout": 0.1, "backbone": "weights/vgg11",
    },
    "grounded_encoder_cap2img": {
        "model.use_attention": False, "model.hidden_size": 2048, "model.grounding_loss": "margin",
        "max_grad_value": 5.0, "per_device_train_batch_size": 128, "glove": "weights/glove.300d.txt",
    },
    "grounded_encoder_att_cap2all": {"model.hidden_size": 1024, "model.attention_size": 350},
    "vse_flickr8k": {
        "model.sentence_encoder": "lstm", "backbone_stage": "fc7", "model.hidden_size": 1024, "model.margin": 0.2,
        "model.loss_reduction": "sum", "max_grad_norm": 2.0,
    },
    "scnlm_flickr30k": {"model.context_size": 5, "model.num_factors": 50, "num_candidates": 1000},
    "vgp_direct": {"optim": "sgd", "learning_rate": 2.24e-3, "max_grad_norm": 10.0, "num_train_epochs": 8},
    "vqa_v2": {"num_answers": 3129, "max_regions": 100, "learning_rate": 1.4e-4, "warmup_steps": 500},
    "referring_detected": {"num_train_epochs": 20, "warmup_steps": 3750, "learning_rate": 1.28e-5},
}  # fmt: skip


@pytest.mark.parametrize("name", FACTS)
def test_configs_have_what_the_papers_state(name):
    config = yaml.safe_load((PAPER / f"{name}.yaml").read_text())
    config |= {f"model.{field}": value for field, value in config.get("model", {}).items()}
    assert {field: config[field] for field in FACTS[name]} == FACTS[name]


def test_every_config_writes_elsewhere_and_is_listed():
    outputs = {name: yaml.safe_load((PAPER / f"{name}.yaml").read_text())["output_dir"] for name in CONFIGS}
    assert outputs == {name: f"outputs/paper/{name}" for name in CONFIGS}
    page = (ROOT / "docs" / "papers.md").read_text()
    assert set(re.findall(r"`((?:show|spatial|grounded|vse|scnlm|vgp|vqa|referring)_\w+)`", page)) == set(CONFIGS)


def test_rmsprop_is_that_of_the_authors(tmp_path):
    config = yaml.safe_load((PAPER / "show_attend_tell_soft_flickr8k.yaml").read_text())
    fields = {name: config[name] for name in ("optim", "optim_args")} | {"learning_rate": 1e-4}
    optimizer, options = VgTrainer.get_optimizer_cls_and_kwargs(VgTrainingArguments(str(tmp_path), **fields))
    assert optimizer is torch.optim.RMSprop
    assert options == {"lr": 1e-4, "momentum": 0.9, "alpha": 0.95, "centered": True, "eps": 0.01}
