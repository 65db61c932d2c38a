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
"""Where images with captions come from, as recipes ask for it."""

from dataclasses import dataclass, field

from .formats import check_dataset_name, detect_format


@dataclass
class CaptionDataArguments:
    """Images with captions, and what is made of the images."""

    dataset: str | None = field(
        default=None,
        metadata={
            "help": "`table`, `flickr8k`, `flickr30k`, `flickr30k_entities`, `karpathy`, `coco` or `webdataset` in "
            "`data_dir`, by default what is found there; `scenes`, the micro-world that is made on the spot, by "
            "default if there is no `data_dir`; or a dataset of the Hub, user/name. See `hf_vg.data.load_captions`."
        },
    )
    data_dir: str | None = field(default=None, metadata={"help": "The folder or file with the captions."})
    images_dir: str | None = field(default=None, metadata={"help": "Where its images are, if not in the usual place."})
    strict: bool = field(default=False, metadata={"help": "Make each row or image that would be skipped an error."})
    check_images: bool = field(default=False, metadata={"help": "Decode all images first, and skip the broken ones."})
    num_train_images: int | None = field(
        default=None, metadata={"help": "Images to train on: the first, or as many scenes. All, or 4,000 scenes."}
    )
    train_share: float | None = field(
        default=None,
        metadata={
            "help": "Train on this share of these images, drawn at random: the same ones whatever the seed, and those "
            "of any smaller share among them."
        },
    )
    num_eval_images: int | None = field(
        default=None, metadata={"help": "Images to validate on, and again to test on. All, or 500 scenes."}
    )
    image_size: int | None = field(
        default=None,
        metadata={
            "help": "Width and height of the images given to a model without `backbone`. Defaults to 224, and to 64 "
            "for scenes."
        },
    )
    squeeze_images: int | None = field(
        default=None,
        metadata={
            "help": "Squeeze all of an image into a square of so many pixels, where otherwise its middle is cut out."
        },
    )
    backbone: str | None = field(
        default=None,
        metadata={
            "help": "Pretrained network to see images with, and its image processor: a folder, or a model of the Hub."
        },
    )
    backbone_stage: str | None = field(
        default=None,
        metadata={
            "help": "Stage of the backbone to take features from, such as stage4, or fc7 of a VGG with its "
            "classifier. By default that of its config, usually the last."
        },
    )
    features: str | None = field(
        default=None,
        metadata={"help": "Folder of the feature cache: what is not in it is computed, and read from it ever after."},
    )
    features_dtype: str = field(
        default="float32",
        metadata={
            "help": "Precision that `features` are computed in. bfloat16 is faster on processors that multiply it "
            "(avx512_bf16, amx_bf16, most GPUs), and several times slower on others.",
            "choices": ["float32", "bfloat16"],
        },
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Run code that comes with a checkpoint, if you trust its author."}
    )

    def __post_init__(self) -> None:
        if self.dataset is not None:
            check_dataset_name(self.dataset)
        if self.data_dir is None:
            self.dataset = self.dataset or "scenes"
        elif self.dataset in (None, "scenes"):
            # A config for scenes and the folder of one's photos: photos are meant.
            try:
                found = detect_format(self.data_dir)
            except OSError as error:
                raise ValueError(str(error)) from None
            self.dataset, self.data_dir = found.name, str(found.path)
        if self.image_size is None:
            self.image_size = 64 if self.dataset == "scenes" else 224


@dataclass
class CaptionerDataArguments(CaptionDataArguments):
    """Captions that a captioner is trained on, loaded or streamed."""

    max_caption_words: int | None = field(
        default=None, metadata={"help": "Captions of more words are not trained on. All are by default."}
    )
    mirror_images: bool = field(
        default=False,
        metadata={
            "help": "Train on each image, or on its mirror image, as a coin decides in every batch. Captions stay as "
            "they are, be it that they say left or right."
        },
    )
    streaming: bool = field(
        default=False,
        metadata={
            "help": "Read the training data as it is trained on, for data bigger than memory or disk: `dataset` is "
            "`webdataset` or `parquet`, and `data_dir` a pattern of its files; or a dataset of the Hub. Needs "
            "`max_steps`."
        },
    )
    eval_data_dir: str | None = field(
        default=None, metadata={"help": "Pattern of the files to validate and test on, when streaming."}
    )
    shuffle_buffer: int = field(
        default=1000, metadata={"help": "Rows in memory to draw from, when streaming. Files are shuffled as well."}
    )
    vocabulary_rows: int = field(
        default=100_000, metadata={"help": "Rows whose words make the vocabulary, when streaming."}
    )
