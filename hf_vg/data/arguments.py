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
"""Command-line arguments of the recipes that choose the caption data."""

from dataclasses import dataclass, field

from .formats import check_dataset_name, detect_format


@dataclass
class CaptionDataArguments:
    """
    Arguments that choose the images and captions, and how the images are prepared. Each field's help text explains it:
    run a recipe with `--help` to see them all.

    Example:

    ```python
    >>> from hf_vg.data import CaptionDataArguments

    >>> args = CaptionDataArguments(num_train_images=100)
    >>> args.dataset, args.image_size
    ('scenes', 64)
    ```
    """

    dataset: str | None = field(
        default=None,
        metadata={
            "help": "Format of the files in `data_dir`: `table`, `flickr8k`, `flickr30k`, `flickr30k_entities`, "
            "`karpathy`, `coco` or `webdataset`; detected if omitted. Or a dataset on the Hub (user/name). Or "
            "`scenes`, the synthetic dataset, which is the default without `data_dir`. See "
            "`hf_vg.data.load_captions`."
        },
    )
    data_dir: str | None = field(default=None, metadata={"help": "The folder or file with the captions."})
    images_dir: str | None = field(
        default=None, metadata={"help": "The folder with the images, if they are not in the usual place."}
    )
    strict: bool = field(
        default=False, metadata={"help": "Raise an error for a bad row or image instead of skipping it."}
    )
    check_images: bool = field(
        default=False, metadata={"help": "Decode all images before training and skip the broken ones."}
    )
    num_train_images: int | None = field(
        default=None,
        metadata={
            "help": "Number of training images: the first ones of the split, or this many scenes. Defaults to all "
            "images, or 4,000 scenes."
        },
    )
    train_share: float | None = field(
        default=None,
        metadata={
            "help": "Train on this random share of the images, between 0 and 1. The choice does not depend on the "
            "seed, and a larger share contains every smaller one."
        },
    )
    num_eval_images: int | None = field(
        default=None,
        metadata={
            "help": "Number of images in the validation split, and in the test split. Defaults to all images, or 500 "
            "scenes."
        },
    )
    image_size: int | None = field(
        default=None,
        metadata={
            "help": "Width and height of the images for a model without `backbone`. Defaults to 224, or 64 for scenes."
        },
    )
    squeeze_images: int | None = field(
        default=None,
        metadata={"help": "Resize the whole image to a square of this many pixels. By default the center is cropped."},
    )
    backbone: str | None = field(
        default=None,
        metadata={"help": "Pretrained vision backbone with its image processor: a folder or a model on the Hub."},
    )
    backbone_stage: str | None = field(
        default=None,
        metadata={
            "help": "Backbone stage to take features from, such as stage4, or fc7 for a VGG with its classifier. "
            "Defaults to the stage in the backbone's config, usually the last."
        },
    )
    features: str | None = field(
        default=None,
        metadata={"help": "Folder of the feature cache. Missing features are computed once and then read from it."},
    )
    features_dtype: str = field(
        default="float32",
        metadata={
            "help": "Precision in which `features` are computed. bfloat16 is faster on hardware that supports it "
            "(avx512_bf16, amx_bf16, most GPUs) and several times slower elsewhere.",
            "choices": ["float32", "bfloat16"],
        },
    )
    trust_remote_code: bool = field(
        default=False,
        metadata={"help": "Run the code that comes with a checkpoint. Use it only if you trust the author."},
    )

    def __post_init__(self) -> None:
        if self.dataset is not None:
            check_dataset_name(self.dataset)
        if self.data_dir is None:
            self.dataset = self.dataset or "scenes"
        elif self.dataset in (None, "scenes"):
            # A config for scenes with a data_dir on the command line: the user wants the photos in data_dir.
            try:
                found = detect_format(self.data_dir)
            except OSError as error:
                raise ValueError(str(error)) from None
            self.dataset, self.data_dir = found.name, str(found.path)
        if self.image_size is None:
            self.image_size = 64 if self.dataset == "scenes" else 224


@dataclass
class CaptionerDataArguments(CaptionDataArguments):
    """
    Adds the arguments of a captioner's training data: caption length, mirrored images and streaming.

    Example:

    ```python
    >>> from hf_vg.data import CaptionerDataArguments

    >>> CaptionerDataArguments(max_caption_words=14, mirror_images=True).max_caption_words
    14
    ```
    """

    max_caption_words: int | None = field(
        default=None, metadata={"help": "Leave out training captions with more words. By default all are used."}
    )
    mirror_images: bool = field(
        default=False,
        metadata={
            "help": "Flip training images left to right at random; also works with cached features. Captions are not "
            "changed, even if they say left or right."
        },
    )
    streaming: bool = field(
        default=False,
        metadata={
            "help": "Stream the training data, for data larger than memory or disk. Set `dataset` to `webdataset` or "
            "`parquet` and `data_dir` to a file pattern, or set `dataset` to a dataset on the Hub. Needs `max_steps`."
        },
    )
    eval_data_dir: str | None = field(
        default=None, metadata={"help": "File pattern of the validation and test data. Used with `streaming`."}
    )
    shuffle_buffer: int = field(
        default=1000,
        metadata={"help": "Number of rows in the shuffle buffer. Used with `streaming`; files are shuffled as well."},
    )
    vocabulary_rows: int = field(
        default=100_000, metadata={"help": "Number of rows to build the vocabulary from. Used with `streaming`."}
    )
