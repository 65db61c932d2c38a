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
"""`hf-vg search`."""

import argparse

import torch

from ..data.images import open_image
from ..pipelines import QdrantVectors, VectorStore, faiss_nearest, load_space, store_folder
from .arguments import positive, use_example_model
from .inputs import ImageInputs
from .output import UsageError, say


SUMMARY = "Find images with a sentence, an image, or sums and differences of them"
EXAMPLES = """\
  hf-vg search --examples --query "a red circle" --minus red --plus blue
  hf-vg search photos/ --model openai/clip-vit-base-patch32 --query "a dog on a beach"
  hf-vg search photos/ --model outputs/vse_scenes --image car.jpg --minus blue --plus red --top 3"""


ADDRESSES = ("http://", "https://")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Adds the arguments of `hf-vg search`."""
    command.add_argument("--query", help="the sentence to start with")
    command.add_argument("--image", help="the image to start with")
    command.add_argument("--plus", action="append", default=[], metavar="TEXT", help="words to add; can be repeated")
    command.add_argument(
        "--minus", action="append", default=[], metavar="TEXT", help="words to subtract; can be repeated"
    )
    command.add_argument("--top", type=positive, default=5, help="number of images to show (default: %(default)s)")
    command.add_argument("--batch_size", type=positive, default=16, help="images per batch (default: %(default)s)")
    command.add_argument("--index", help="folder for the image vectors (default: a folder in the Hugging Face cache)")
    elsewhere = command.add_mutually_exclusive_group()
    elsewhere.add_argument(
        "--faiss", action="store_true", help="use an approximate FAISS index: faster for millions of images"
    )
    elsewhere.add_argument(
        "--qdrant", metavar="URL", help="store and search the vectors in a Qdrant database or a local Qdrant folder"
    )


def run(args: argparse.Namespace, inputs: ImageInputs) -> None:
    """Searches the images."""
    if (args.query is None) == (args.image is None):
        raise UsageError("Pass either --query or --image to start with.")
    texts = [*([args.query] if args.query is not None else []), *args.plus, *args.minus]
    if not all(text.strip() for text in texts):
        raise UsageError("A text of --query, --plus or --minus is empty.")
    paths = inputs.paths(args.images)
    if not paths:
        return
    use_example_model(args, "vse_scnlm")
    image = None if args.image is None else open_image(args.image)
    space = load_space(args.model, args.trust_remote_code)
    query = space.text(args.query) if image is None else space.image(image)
    for text in args.plus:
        query = query + text
    for text in args.minus:
        query = query - text
    store = VectorStore(store_folder(space, args.index))
    files = [path for path in paths if not path.startswith(ADDRESSES)]
    for path, _, vector in inputs.results(space.encode_images, store.missing(files), "Encoding", args.batch_size):
        store.add(path, vector)
    store.save()
    hits = _search(args, store, query.vector, files)
    # Vectors of URLs are not stored, because the image may change.
    addresses = [path for path in paths if path.startswith(ADDRESSES)]
    for path, _, vector in inputs.results(space.encode_images, addresses, "Encoding", args.batch_size):
        hits += [(path, hit["score"]) for hit in space.search(query, vector[None])]
    for rank, (path, score) in enumerate(sorted(hits, key=lambda hit: -hit[1])[: args.top], 1):
        record = {"rank": rank, "image": path, "score": round(score, 4)}
        say(args, record, f"{record['score']:.4f}", record["image"])


def _search(
    args: argparse.Namespace, store: VectorStore, query: torch.Tensor, files: list[str]
) -> list[tuple[str, float]]:
    if not files:
        return []
    if args.faiss:
        return faiss_nearest(store, query, files, args.top)
    if args.qdrant is not None:
        return QdrantVectors(args.qdrant, store).nearest(query, files, args.top)
    return store.nearest(query, files, args.top)
