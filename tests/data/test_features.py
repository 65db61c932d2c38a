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
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset, Features, load_from_disk
from datasets import Image as ImageFeature
from PIL import Image, ImageOps
from safetensors.torch import save_file
from transformers import AutoImageProcessor, CLIPImageProcessorPil

from hf_vg import (
    ShowAttendTellConfig,
    ShowAttendTellForConditionalGeneration,
    ShowAttendTellProcessor,
    VggBackbone,
    VggConfig,
    VggForImageClassification,
)
from hf_vg.data import (
    CaptionCollator,
    FeatureCache,
    captioner_rows,
    extract_features,
    grounded_captions,
    load_backbone,
    open_image,
    train_word_tokenizer,
)
from hf_vg.data.captions import CAPTION_FEATURES
from hf_vg.data.entities import GROUNDED_FEATURES
from hf_vg.data.features import image_digests
from hf_vg.data.streaming import CaptionStream
from hf_vg.training import CaptionerArguments, SupervisedCaptionerTrainer, VgTrainingArguments, build_captioner
from tests.common import start_process


REPOSITORY = Path(__file__).resolve().parents[2]
NUM_IMAGES = 10


@pytest.fixture
def backbone():
    torch.manual_seed(0)
    return VggBackbone(VggConfig(depths=[1, 1], hidden_sizes=[4, 8])).eval()


@pytest.fixture
def image_processor():
    return CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16})


def draw(folder: Path, number: int = NUM_IMAGES) -> list[str]:
    generator = np.random.default_rng(0)
    folder.mkdir(exist_ok=True)
    paths = [str(folder / f"{index}.png") for index in range(number)]
    for path in paths:
        Image.fromarray(generator.integers(0, 255, (20, 24, 3), dtype=np.uint8)).save(path)
    return paths


def captions_of(paths: list[str]) -> Dataset:
    captions = [[f"a dog {index}", "a dog"] for index in range(len(paths))]
    columns = {"image_id": paths, "image": paths, "captions": captions}
    return Dataset.from_dict(columns, features=CAPTION_FEATURES)


@pytest.fixture
def dataset(tmp_path):
    return captions_of(draw(tmp_path / "images"))


def extract(dataset, backbone, image_processor, folder, **kwargs) -> tuple[FeatureCache, int]:
    """Returns the cache, and the number of images that the backbone encoded."""
    seen = []
    handle = backbone.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    arguments = {"batch_size": 2, "shard_size": 4, "num_workers": 0, **kwargs}
    cache = extract_features(dataset, backbone, image_processor, folder, **arguments)
    handle.remove()
    return cache, sum(seen)


def reference(dataset, backbone, image_processor) -> torch.Tensor:
    """Computes features (N, H, W, C) one image at a time."""
    with torch.no_grad():
        pixels = [image_processor(row["image"].convert("RGB"), return_tensors="pt")["pixel_values"] for row in dataset]
        return torch.stack([backbone(image).feature_maps[-1][0].permute(1, 2, 0) for image in pixels])


def test_maps_are_those_of_the_backbone(dataset, backbone, image_processor, tmp_path):
    cache, computed = extract(dataset, backbone, image_processor, tmp_path / "cache", num_workers=2)
    assert computed == len(cache) == NUM_IMAGES
    rows = cache.attach(dataset)
    features = torch.stack([row["image_features"] for row in rows])
    assert features.dtype == torch.float16 and features.shape == (NUM_IMAGES, 8, 8, 8)
    torch.testing.assert_close(features.float(), reference(dataset, backbone, image_processor), rtol=1e-3, atol=1e-4)
    assert [row["captions"] for row in rows] == dataset["captions"][:] and set(rows[0]) == {
        "captions",
        "image_features",
    }


def test_pooled_vectors(dataset, backbone, image_processor, tmp_path):
    cache, _ = extract(dataset, backbone, image_processor, tmp_path, pooling="mean")
    features = torch.stack([row["image_features"] for row in cache.attach(dataset)])
    expected = reference(dataset, backbone, image_processor).mean(dim=(1, 2))
    torch.testing.assert_close(features.float(), expected, rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="`pooling` .*none, mean.*'max'"):
        extract_features(dataset, backbone, image_processor, tmp_path, pooling="max")


def test_bfloat16_is_nearly_equal_and_has_a_folder_of_its_own(dataset, backbone, image_processor, tmp_path):
    cache, _ = extract(dataset, backbone, image_processor, tmp_path)
    half, computed = extract(dataset, backbone, image_processor, tmp_path, dtype=torch.bfloat16)
    assert computed == NUM_IMAGES and half.folder != cache.folder
    exact, rough = (torch.stack([row["image_features"] for row in c.attach(dataset)]).float() for c in (cache, half))
    assert not torch.equal(exact, rough)  # computed in the other precision
    torch.testing.assert_close(rough, exact, rtol=0.05, atol=0.02)
    assert next(backbone.parameters()).dtype == torch.float32  # the model itself does not change


@pytest.mark.parametrize(
    "capabilities, warned",
    [
        ({"architecture": "x86_64", "avx512_f": True, "avx512_bf16": False}, True),
        ({"architecture": "x86_64", "avx512_bf16": True}, False),
        ({"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": True}, False),
        ({"architecture": "arm64", "neon": True, "bf16": True}, False),
        (None, False),  # a torch that cannot tell
    ],
)
def test_a_cpu_that_is_slower_in_bfloat16_is_told(
    capabilities, warned, dataset, backbone, image_processor, tmp_path, monkeypatch, capsys
):
    if capabilities is None:
        monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    else:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    extract(dataset, backbone, image_processor, tmp_path)
    assert "bfloat16" not in capsys.readouterr().out  # float32 is fast everywhere
    extract(dataset, backbone, image_processor, tmp_path, dtype=torch.bfloat16)
    assert ("no bfloat16 instructions" in capsys.readouterr().out) == warned
    extract(dataset, backbone, image_processor, tmp_path, dtype=torch.bfloat16)
    assert "bfloat16" not in capsys.readouterr().out  # nothing is left to compute


def test_the_backbone_can_be_trained_afterwards(dataset, backbone, image_processor, tmp_path):
    extract(dataset, backbone, image_processor, tmp_path)
    backbone(torch.randn(1, 3, 16, 16)).feature_maps[-1].sum().backward()
    assert all(parameter.grad is not None for parameter in backbone.parameters())


def test_fc7_of_a_classifier_is_a_vector(dataset, image_processor, tmp_path):
    torch.manual_seed(0)
    config = VggConfig(depths=[1, 1], hidden_sizes=[4, 8], fc_size=6)
    VggForImageClassification(config).save_pretrained(tmp_path / "vgg")
    backbone = load_backbone(tmp_path / "vgg", stage="fc7")
    cache, _ = extract(dataset, backbone, image_processor, tmp_path / "cache", pooling="mean")
    features = torch.stack([row["image_features"] for row in cache.attach(dataset)])
    assert features.shape == (NUM_IMAGES, 6) and features.any()
    expected = reference(dataset, backbone, image_processor)[:, 0, 0]
    torch.testing.assert_close(features.float(), expected, rtol=1e-3, atol=1e-4)


def test_mirrored_images_have_features_of_their_own(dataset, backbone, tmp_path):
    # No center crop: it may cut off one pixel more on one side than on the other.
    image_processor = CLIPImageProcessorPil(size={"height": 16, "width": 16}, do_center_crop=False)
    cache, _ = extract(dataset, backbone, image_processor, tmp_path)
    mirror_cache, computed = extract(dataset, backbone, image_processor, tmp_path, mirrored=True)
    assert computed == NUM_IMAGES and mirror_cache.folder != cache.folder
    mirror_images = dataset.map(lambda row: {"image": ImageOps.mirror(row["image"])})
    expected = reference(mirror_images, backbone, image_processor)
    features = torch.stack([row["image_features"] for row in mirror_cache.attach(dataset)])
    torch.testing.assert_close(features.float(), expected, rtol=1e-3, atol=1e-4)
    assert (
        extract(dataset, backbone, image_processor, tmp_path)[1] == 0
    )  # the features of the original images are kept


def test_a_coin_decides_which_features_a_row_has(dataset, backbone, image_processor, tmp_path):
    cache, _ = extract(dataset, backbone, image_processor, tmp_path)
    mirror_cache, _ = extract(dataset, backbone, image_processor, tmp_path, mirrored=True)
    rows = cache.attach(dataset, mirrored=mirror_cache)
    digests, counts = image_digests(dataset), torch.zeros(NUM_IMAGES, 2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):  # batches of all rows, each in another order
        order = torch.randperm(NUM_IMAGES, generator=generator).tolist()
        read = rows[order]["image_features"]
        for index, features in zip(order, read, strict=True):
            is_side = [features.equal(sides[digests[index]]) for sides in (cache, mirror_cache)]
            assert sum(is_side) == 1
            counts[index] += torch.tensor(is_side)
        # The same batch always has the same draws, in a resumed run and in another process.
        assert all(map(torch.equal, read, rows[order]["image_features"]))
    assert counts.min() > 5  # about 20 each on average
    with pytest.raises(ValueError, match="10 of 10 images .*empty"):
        cache.attach(dataset, mirrored=FeatureCache(tmp_path / "empty"))


def test_what_is_there_is_not_computed_again(dataset, backbone, image_processor, tmp_path):
    half = dataset.select(range(5))
    assert extract(half, backbone, image_processor, tmp_path)[1] == 5
    files = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.safetensors")}
    cache, computed = extract(dataset, backbone, image_processor, tmp_path)
    assert computed == 5 and len(cache) == NUM_IMAGES
    assert all(file.stat().st_mtime_ns == written for file, written in files.items())
    assert extract(dataset, backbone, image_processor, tmp_path)[1] == 0


def test_images_are_told_apart_by_their_bytes(dataset, backbone, image_processor, tmp_path):
    folder = tmp_path / "cache"
    paths = dataset["image_id"][:]
    embedded = Dataset.from_dict(
        {"image": [{"bytes": Path(path).read_bytes(), "path": "same.png"} for path in paths]},
        features=Features(image=ImageFeature()),
    )
    twice = captions_of(paths + paths[::-1])
    assert extract(twice, backbone, image_processor, folder)[1] == NUM_IMAGES
    assert extract(embedded, backbone, image_processor, folder)[1] == 0
    assert image_digests(embedded) == image_digests(dataset) == image_digests(twice)[:NUM_IMAGES]

    # The same file name with another image: the old features are not used.
    Path(paths[3]).write_bytes(Path(paths[4]).read_bytes() + b"more")
    cache = extract_features(dataset.select([]), backbone, image_processor, folder)
    with pytest.raises(ValueError, match=r"1 of 10 images .*3\.png"):
        cache.attach(dataset)
    assert extract(dataset, backbone, image_processor, folder)[1] == 1


def test_other_weights_or_preprocessing_find_nothing(dataset, backbone, image_processor, tmp_path):
    def cache_folder(**options):
        return extract_features(dataset.select([]), backbone, image_processor, tmp_path, **options).folder

    extract(dataset, backbone, image_processor, tmp_path)
    folders = [cache_folder()]
    image_processor.do_normalize = False
    folders.append(cache_folder())
    assert extract(dataset, backbone, image_processor, tmp_path)[1] == NUM_IMAGES
    with torch.no_grad():
        backbone.stages[0].layers[0].convolution.bias[0] += 1e-6
    folders.append(cache_folder())
    folders.append(cache_folder(pooling="mean"))
    backbone.config.out_features = ["stage1"]
    folders.append(cache_folder())
    assert len(set(folders)) == 5


def test_saving_and_loading_does_not_change_the_key(dataset, backbone, image_processor, tmp_path):
    cache, _ = extract(dataset, backbone, image_processor, tmp_path / "cache")
    backbone.save_pretrained(tmp_path / "saved")
    image_processor.save_pretrained(tmp_path / "saved")
    processor = ShowAttendTellProcessor(image_processor, train_word_tokenizer(["a dog"]))
    processor.save_pretrained(tmp_path / "processor")
    for loaded in (
        AutoImageProcessor.from_pretrained(tmp_path / "saved"),
        processor.image_processor,
        ShowAttendTellProcessor.from_pretrained(tmp_path / "processor").image_processor,
    ):
        again, computed = extract(dataset, load_backbone(tmp_path / "saved"), loaded, tmp_path / "cache")
        assert again.folder == cache.folder and computed == 0


def test_an_unreadable_image_is_named_and_finished_shards_are_kept(dataset, backbone, image_processor, tmp_path):
    # Images are processed in the order of their digests: this one is last.
    broken = Path(dataset["image_id"][3])
    for attempt in range(10000):
        broken.write_bytes(f"no image {attempt}".encode())
        digests = image_digests(dataset.select([3]))
        if digests[0] > b"\xff":
            break
    with pytest.raises(ValueError, match=r"3\.png.* cannot be opened as an image"):
        extract(dataset, backbone, image_processor, tmp_path / "cache")
    good = dataset.select([row for row in range(NUM_IMAGES) if row != 3])
    assert extract(good, backbone, image_processor, tmp_path / "cache")[1] == NUM_IMAGES - 1 - 8


@pytest.mark.parametrize("num_workers", [0, 2])
def test_unreadable_images_have_no_features_and_their_rows_are_left_out(
    dataset, backbone, image_processor, tmp_path, caplog, capsys, num_workers
):
    broken = [Path(dataset["image_id"][row]) for row in (0, 3, 4)]
    for index, path in enumerate(broken):
        path.write_bytes(path.read_bytes()[: 40 + index])
    for _ in range(2):  # the second run computes nothing and gives the same rows
        cache = extract_features(
            dataset, backbone, image_processor, tmp_path / "cache", batch_size=1, num_workers=num_workers, strict=False
        )
        rows = cache.attach(dataset, columns=["image_id"])
        good = [name for name in dataset["image_id"] if Path(name) not in broken]
        assert [row["image_id"] for row in rows] == good
        assert len(cache) == len(good) and "3 images cannot be opened" in capsys.readouterr().out
    if num_workers == 0:
        assert all(path.name in caplog.text for path in broken)


def test_features_are_mapped_and_travel_as_a_path(dataset, backbone, image_processor, tmp_path):
    cache, _ = extract(dataset, backbone, image_processor, tmp_path)
    maps = Path("/proc/self/maps").read_text()
    assert all(str(file) in maps for file in cache.folder.glob("*.safetensors"))
    sent = pickle.dumps(cache)
    digest = image_digests(dataset)[3]
    assert len(sent) < 1000 and torch.equal(pickle.loads(sent)[digest], cache[digest])


def test_a_damaged_shard_is_named(dataset, backbone, image_processor, tmp_path):
    cache, _ = extract(dataset, backbone, image_processor, tmp_path)
    shard = sorted(cache.folder.glob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(ValueError, match=f"{shard.name} is damaged"):
        FeatureCache(cache.folder)


@pytest.mark.parametrize(
    "tensors",
    [
        {"features": torch.zeros(2, 4, dtype=torch.float16)},
        {"digests": torch.zeros(2, 16, dtype=torch.uint8)},
        {"features": torch.zeros(2, 4), "digests": torch.zeros(2, 16, dtype=torch.uint8)},
        {"features": torch.zeros(2, dtype=torch.float16), "digests": torch.zeros(2, 16, dtype=torch.uint8)},
        {"features": torch.zeros(2, 4, dtype=torch.float16), "digests": torch.zeros(1, 16, dtype=torch.uint8)},
        {"features": torch.zeros(2, 4, dtype=torch.float16), "digests": torch.zeros(2, 8, dtype=torch.uint8)},
    ],
    ids=str,
)
def test_a_shard_of_something_else_is_named(tensors, tmp_path):
    save_file(tensors, tmp_path / "0.safetensors")
    with pytest.raises(ValueError, match=r"0\.safetensors is damaged \(.*Delete it"):
        FeatureCache(tmp_path)


def test_features_that_half_precision_can_not_hold_are_refused(dataset, backbone, image_processor, tmp_path):
    with torch.no_grad():
        backbone.stages[1].layers[0].convolution.bias += 1e6
    with pytest.raises(ValueError, match=r"\.png .*not finite"):
        extract(dataset, backbone, image_processor, tmp_path)


def test_a_classifier_has_a_backbone_and_a_checkpoint_that_does_not_fill_it_is_refused(backbone, tmp_path):
    state = {name: tensor for name, tensor in backbone.state_dict().items() if "stages.1" not in name}
    backbone.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ValueError, match=r"lacks weights of VggBackbone: stages.1"):
        load_backbone(tmp_path)


def test_a_captioner_trains_on_features_as_on_images(dataset, backbone, image_processor, tmp_path):
    tokenizer = train_word_tokenizer(["a dog"])
    config = ShowAttendTellConfig(
        backbone_config=backbone.config,
        feature_size=8,
        vocab_size=len(tokenizer),
        embedding_size=8,
        hidden_size=8,
        dropout=0.0,
        initializer_range=0.2,
    )
    model = ShowAttendTellForConditionalGeneration(config).eval()
    cache, _ = extract(dataset, model.model.encoder.image_encoder.backbone, image_processor, tmp_path / "cache")
    collator = CaptionCollator(ShowAttendTellProcessor(image_processor, tokenizer))
    rows = cache.attach(dataset)
    Path(dataset["image_id"][0]).rename(tmp_path / "away.png")
    from_features = collator([rows[index] for index in range(1, 4)])
    assert torch.equal(
        collator([rows[index] for index in range(0, 4)])["image_features"][1:], from_features["image_features"]
    )
    from_images = collator([dataset[index] for index in range(1, 4)])
    assert "pixel_values" in from_images and "pixel_values" not in from_features
    assert torch.equal(from_images["labels"], from_features["labels"])
    torch.testing.assert_close(model(**from_features).loss, model(**from_images).loss, rtol=1e-3, atol=1e-4)


def test_recipes_get_rows_with_features(dataset, backbone, image_processor, tmp_path):
    backbone.save_pretrained(tmp_path / "backbone")
    image_processor.save_pretrained(tmp_path / "backbone")
    tokenizer = train_word_tokenizer(["a dog"])
    fields = {"embedding_size": 8, "hidden_size": 8}
    args = CaptionerArguments(model=fields, backbone=str(tmp_path / "backbone"), features=str(tmp_path / "cache"))
    model, processor = build_captioner(args, tokenizer)
    assert torch.equal(
        model.model.encoder.image_encoder.backbone.stages[0].layers[0].convolution.weight,
        backbone.stages[0].layers[0].convolution.weight,
    )
    rows = captioner_rows(args, dataset, model, processor, by_length=True)
    assert len(rows) == 2 * NUM_IMAGES and sorted(set(rows.with_format(None)["length"])) == [3, 4]
    batch = CaptionCollator(processor)([rows[0], rows[1]])
    assert batch["image_features"].shape == (2, 8, 8, 8)

    rows = captioner_rows(args, dataset, model, processor, mirror_images=True)
    maps = torch.stack([rows[[0, other]]["image_features"][0] for other in range(1, NUM_IMAGES)]).flatten(1)
    assert len(maps.unique(dim=0)) == 2  # the features of the image and of its mirror image

    with pytest.raises(ValueError, match="would keep its random weights"):
        build_captioner(CaptionerArguments(model=fields), tokenizer)
    model.config.freeze_backbone = False
    with pytest.raises(ValueError, match="need a frozen backbone"):
        captioner_rows(args, dataset, model, processor)


@pytest.mark.parametrize("by_length", [False, True])
def test_a_coin_decides_whether_an_image_is_mirrored(dataset, image_processor, by_length):
    processor = ShowAttendTellProcessor(image_processor, train_word_tokenizer(["a dog"]))
    rows = captioner_rows(CaptionerArguments(), dataset, None, processor, by_length, mirror_images=True)
    plain = captioner_rows(CaptionerArguments(), dataset, None, processor, by_length)
    is_mirrored = []
    for row, as_it_is in zip(rows, plain, strict=True):
        image, pixels = (np.asarray(open_image(of["image"])) for of in (row, as_it_is))
        is_mirrored.append(bool((image == pixels[:, ::-1]).all()))
        assert is_mirrored[-1] or (image == pixels).all()
        assert row["captions"] == as_it_is["captions"]
    assert 0 < sum(is_mirrored) < len(rows)
    stream = CaptionStream(None, "image")
    with pytest.raises(ValueError, match="does not work with `streaming`"):
        captioner_rows(CaptionerArguments(), stream, None, processor, mirror_images=True)


@pytest.fixture
def grounded(tmp_path):
    """Photos of 24 x 20 pixels with a dog on the left side."""
    rows = []
    for number, path in enumerate(draw(tmp_path / "images")):
        row = grounded_captions(["a dog runs", f"dog {number}"], [("dog", [2, 4, 8, 16])])
        rows.append({"image_id": path, "image": path, **row})
    return Dataset.from_list(rows, features=GROUNDED_FEATURES)


@pytest.fixture
def grounded_captioner(tmp_path):
    """Makes the same captioner each time, and the arguments that say whether its features are cached."""
    folder = tmp_path / "backbone"
    torch.manual_seed(0)
    VggBackbone(VggConfig(depths=[1, 1], hidden_sizes=[4, 8])).save_pretrained(folder)
    CLIPImageProcessorPil(size={"height": 16, "width": 16}, do_center_crop=False).save_pretrained(folder)

    def make(cached: bool):
        args = CaptionerArguments(
            model={"embedding_size": 8, "hidden_size": 8, "dropout": 0.0, "attention_penalty": 0.5},
            backbone=str(folder),
            features=str(tmp_path / "cache") if cached else None,
            dataset="flickr30k_entities",
            data_dir="entities",
            attention_supervision="direct",
        )
        torch.manual_seed(0)
        return args, *build_captioner(args, train_word_tokenizer(["a dog runs", "the dog"]))

    return make


@pytest.mark.parametrize("cached", [False, True])
def test_boxes_are_mirrored_with_their_image(grounded, grounded_captioner, cached):
    args, model, processor = grounded_captioner(cached)
    collator = CaptionCollator(processor)
    plain = captioner_rows(args, grounded, model, processor)
    rows = captioner_rows(args, grounded, model, processor, mirror_images=True)
    image = "image_features" if cached else "pixel_values"
    sides = []
    for index in range(NUM_IMAGES):
        expected, batch = (collator([of[index]]) for of in (plain, rows))
        assert torch.equal(expected["boxes"][0], torch.tensor([[2 / 24, 4 / 20, 8 / 24, 16 / 20]]))
        sides.append(not torch.equal(expected[image], batch[image]))
        boxes = torch.tensor([[16 / 24, 4 / 20, 22 / 24, 16 / 20]]) if sides[-1] else expected["boxes"][0]
        torch.testing.assert_close(batch["boxes"][0], boxes)
        assert torch.equal(batch["phrase_spans"], expected["phrase_spans"])
    assert 0 < sum(sides) < NUM_IMAGES


def test_a_broken_image_with_boxes_is_left_out(grounded, grounded_captioner):
    Path(grounded["image_id"][3]).write_bytes(b"broken")
    args, model, processor = grounded_captioner(cached=True)
    rows = captioner_rows(args, grounded, model, processor)
    assert len(rows) == NUM_IMAGES - 1 and all(tuple(row["image_size"]) == (24, 20) for row in rows)


def test_supervision_is_the_same_with_cached_features(grounded, grounded_captioner, tmp_path):
    logs = []
    for cached in (False, True):
        args, model, processor = grounded_captioner(cached)
        trainer = SupervisedCaptionerTrainer(
            model=model,
            args=VgTrainingArguments(
                str(tmp_path / "out"), max_steps=1, logging_steps=1, per_device_train_batch_size=4, use_cpu=True,
                remove_unused_columns=False, disable_tqdm=True, save_strategy="no",
            ),
            train_dataset=captioner_rows(args, grounded, model, processor),
            data_collator=CaptionCollator(processor),
            processing_class=processor,
            attention_weight=2.0,
        )  # fmt: skip
        trainer.train()
        logs.append(trainer.state.log_history[0])
    for name in ("loss", "loss_caption", "loss_attention", "loss_grounding"):
        assert logs[0][name] == pytest.approx(logs[1][name], rel=1e-3)
    # The penalty of the paper and the supervision are parts of their own.
    parts = logs[0]["loss_caption"] + 0.5 * logs[0]["loss_attention"] + 2 * logs[0]["loss_grounding"]
    assert logs[0]["loss"] == pytest.approx(parts, rel=1e-3)


def environment() -> dict[str, str]:
    return {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}


def extract_slowly(folder: Path) -> None:
    backbone = load_backbone(folder / "backbone")
    backbone.register_forward_pre_hook(lambda *_: time.sleep(0.3))
    image_processor = AutoImageProcessor.from_pretrained(folder / "backbone")
    dataset = load_from_disk(folder / "dataset")
    extract_features(dataset, backbone, image_processor, folder / "cache", batch_size=1, shard_size=4)


def test_killed_it_goes_on_where_it_was(dataset, backbone, image_processor, tmp_path):
    """Kills the process while it computes the third shard."""
    backbone.save_pretrained(tmp_path / "backbone")
    image_processor.save_pretrained(tmp_path / "backbone")
    dataset.save_to_disk(tmp_path / "dataset")
    process = start_process(extract_slowly, tmp_path)
    while process.is_alive() and len(list((tmp_path / "cache").rglob("*.safetensors"))) < 2:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL

    shards = {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*.safetensors")}
    assert len(shards) == 2
    folder = next(iter(shards)).parent
    leftover, unfinished = (folder / f"half-written.safetensors.{number}.tmp" for number in (1, 2))
    leftover.write_bytes(b"what a kill within a write leaves")
    os.utime(leftover, (0, 0))
    unfinished.write_bytes(b"what another run is writing")
    cache, computed = extract(dataset, backbone, image_processor, tmp_path / "cache")
    assert cache.folder == folder and computed == NUM_IMAGES - 8 and len(cache) == NUM_IMAGES
    assert all(file.stat().st_mtime_ns == written for file, written in shards.items())
    # Old temporary files are deleted. Recent ones are kept, because another run may be writing them.
    assert not leftover.exists() and unfinished.exists()
    features = torch.stack([row["image_features"] for row in cache.attach(dataset)])
    torch.testing.assert_close(features.float(), reference(dataset, backbone, image_processor), rtol=1e-3, atol=1e-4)


def test_two_runs_share_a_cache_and_one_of_them_is_killed(dataset, backbone, image_processor, tmp_path):
    backbone.save_pretrained(tmp_path / "backbone")
    image_processor.save_pretrained(tmp_path / "backbone")
    dataset.save_to_disk(tmp_path / "dataset")
    killed, other = (start_process(extract_slowly, tmp_path) for _ in range(2))
    while killed.is_alive() and not list((tmp_path / "cache").rglob("*.safetensors")):
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    other.join()
    assert killed.exitcode == -signal.SIGKILL and other.exitcode == 0
    cache, computed = extract(dataset, backbone, image_processor, tmp_path / "cache")
    undisturbed, _ = extract(dataset, backbone, image_processor, tmp_path / "undisturbed", batch_size=1)
    assert computed == 0 and cache.keys() == undisturbed.keys()
    assert all(torch.equal(cache[digest], features) for digest, features in undisturbed.items())


def test_two_processes_share_the_work(dataset, backbone, image_processor, tmp_path):
    backbone.save_pretrained(tmp_path / "backbone")
    image_processor.save_pretrained(tmp_path / "backbone")
    rows = "\n".join(f"{index}.png,a dog" for index in range(NUM_IMAGES))
    (tmp_path / "images" / "captions.csv").write_text(f"image,caption\n{rows}\n")
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    flags = ["--dataset", "table", "--data_dir", str(tmp_path / "images"), "--backbone", str(tmp_path / "backbone")]
    flags += ["--features", str(tmp_path / "cache"), "--batch_size", "2"]
    command = [*launch, str(REPOSITORY / "recipes/extract_features.py"), *flags]
    result = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "(8, 8, 8)" in result.stdout
    cache, computed = extract(dataset, backbone, image_processor, tmp_path / "cache")
    # One file per process.
    assert computed == 0 and len(list(cache.folder.glob("*.safetensors"))) == 2
    assert sorted(len(shard) for shard in cache._shards) == [5, 5]
    features = torch.stack([row["image_features"] for row in cache.attach(dataset)])
    torch.testing.assert_close(features.float(), reference(dataset, backbone, image_processor), rtol=1e-3, atol=1e-4)
