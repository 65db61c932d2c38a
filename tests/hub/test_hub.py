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
"""Uploads to a local Hub and loads from it with the real huggingface_hub: models, failures, resumed trainings."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from safetensors.torch import load, load_file

from hf_vg.loading import load_checkpoint
from tests.common import ROOT
from tests.hub.checkpoints import checkpoints
from tests.hub.server import Hub


@pytest.fixture(scope="module")
def hub():
    with Hub({"good-token": "user", "other-token": "somebody"}) as hub:
        yield hub


def start(code: str, hub: Hub, folder: Path, *launcher: str) -> subprocess.Popen:
    """Starts a new process that uses `hub` as the Hub, with its own caches."""
    file = folder / "script.py"
    file.write_text(textwrap.dedent(code))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_ENDPOINT": hub.endpoint,
        "HF_TOKEN": "good-token",
        "HF_HOME": str(folder / "home"),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("HF_HUB_OFFLINE", None)
    return subprocess.Popen(
        [sys.executable, *launcher, str(file)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(code: str, hub: Hub, folder: Path, *launcher: str) -> None:
    process = start(code, hub, folder, *launcher)
    printed, _ = process.communicate(timeout=300)
    assert process.returncode == 0, printed


PUSH = """
    import json, sys
    import torch
    from huggingface_hub import HfApi, ModelCard
    from safetensors.torch import save_file
    from tests.hub.checkpoints import checkpoints

    commits = {}
    for name, checkpoint in checkpoints().items():
        repo_id = f"user/{name}"
        # What is pushed, to the bit: a captioner's memory of sentences may differ in the last one between processes.
        tensors = {key: tensor.clone() for key, tensor in checkpoint.model.state_dict().items()}
        save_file(tensors, f"{name}.safetensors")
        commits[name] = checkpoint.model.push_to_hub(repo_id).oid
        if name == "vgg":  # an image processor is transformers' own
            checkpoint.processor.push_to_hub(repo_id)
        else:
            checkpoint.processor.push_to_hub(repo_id, commit_message="Its processor")
        card = ModelCard.load(repo_id)
        card.validate()
        assert card.data.library_name == "transformers" and card.data.pipeline_tag and "hf_vg" in card.data.tags
        if name != "vgg":
            assert f'model="{repo_id}"' in card.text or f'from_pretrained("{repo_id}"' in card.text

    # A second version, a tag of the first, a branch, and a card that its owner has rewritten.
    api, model = HfApi(), checkpoints()["show-attend-tell"].model
    api.create_tag("user/show-attend-tell", tag="v1", revision=commits["show-attend-tell"])
    api.upload_file(path_or_fileobj=b"---\\nlibrary_name: transformers\\n---\\nMine.", path_in_repo="README.md",
                    repo_id="user/show-attend-tell")
    with torch.no_grad():
        model.lm_head.bias.zero_()
    commits["second"] = model.push_to_hub("user/show-attend-tell").oid
    assert ModelCard.load("user/show-attend-tell").text.strip() == "Mine."
    model.save_pretrained("local", push_to_hub=True, repo_id="user/show-attend-tell", revision="trial")
    assert api.file_exists("user/show-attend-tell", "model.safetensors", revision="trial")
    json.dump(commits, open("commits.json", "w"))

    # Published weights, converted and published again.
    from hf_vg.hub import convert_visual_bert as visual_bert
    from hf_vg.hub import convert_vgg as vgg
    from tests.models.test_modeling_vgg import without_data

    ones = {name: torch.ones(tensor.shape, dtype=torch.bfloat16) for name, tensor in without_data("vgg11").items()}
    save_file(ones, "v.safetensors")
    vgg.main(["--checkpoint", "v.safetensors", "--output_dir", "vgg", "--push_to_hub", "user/converted-vgg"])
    checkpoints()["visual-bert"].processor.tokenizer.save_pretrained("words")
    from transformers import VisualBertConfig, VisualBertModel
    VisualBertModel(VisualBertConfig(vocab_size=20, hidden_size=8, visual_embedding_dim=7, num_hidden_layers=1,
                                     num_attention_heads=2, intermediate_size=8)).save_pretrained("theirs")
    visual_bert.main(["--checkpoint", "theirs", "--output_dir", "bert", "--tokenizer", "words",
                      "--push_to_hub", "user/converted-visual-bert"])
"""

# Without hf_vg installed and without a token.
PULL = """
    import json
    import torch
    import transformers
    from PIL import Image
    from transformers import AutoBackbone, AutoProcessor, pipeline

    names, commits = json.loads(ARGUMENTS)
    sums = {}
    for name, auto_class in names.items():
        model = getattr(transformers, auto_class).from_pretrained(f"user/{name}", trust_remote_code=True)
        assert type(model).__module__.startswith("transformers_modules.user.")
        sums[name] = sum(tensor.double().sum().item() for tensor in model.state_dict().values())
        if name != "vgg":
            processor = AutoProcessor.from_pretrained(f"user/{name}", trust_remote_code=True)
            assert type(processor).__module__.startswith("transformers_modules.user.")
    assert AutoBackbone.from_pretrained("user/vgg", trust_remote_code=True).channels == [6]
    converted = transformers.AutoModel.from_pretrained("user/converted-visual-bert", trust_remote_code=True)
    assert converted.config.visual_embedding_dim == 7

    image = Image.new("RGB", (20, 16), "red")
    for name in ("spatial-transformer", "scnlm"):
        captioner = pipeline("image-to-text", model=f"user/{name}", trust_remote_code=True)
        assert isinstance(captioner(image)[0]["generated_text"], str)
    first, second = commits["show-attend-tell"], commits["second"]
    for revision, is_first in ((first, True), ("v1", True), (second, False), ("main", False)):
        model = transformers.AutoModelForImageTextToText.from_pretrained(
            "user/show-attend-tell", revision=revision, trust_remote_code=True
        )
        assert bool(model.lm_head.bias.any()) == is_first, revision
    # The first commit would lack the processor.
    captioner = pipeline("image-to-text", model="user/show-attend-tell", revision=second, trust_remote_code=True)
    assert captioner(image) and not captioner.model.lm_head.bias.any()
    json.dump(sums, open("sums.json", "w"))
"""


def test_every_model_to_the_hub_and_back(hub, stranger, tmp_path):
    run(PUSH, hub, tmp_path)
    commits = json.loads((tmp_path / "commits.json").read_text())
    names = {name: checkpoint.auto_class for name, checkpoint in checkpoints().items()}
    arguments = json.dumps([names, commits])
    pull = f"ARGUMENTS = {arguments!r}\n" + textwrap.dedent(PULL)
    stranger.run(pull, tmp_path, HF_ENDPOINT=hub.endpoint, HF_HUB_DISABLE_XET="1")

    sums = json.loads((tmp_path / "sums.json").read_text())
    for name in names:
        files = hub.files(f"user/{name}", commits[name])
        assert {"README.md", "config.json", "model.safetensors"} <= set(files), name
        sent = load(files["model.safetensors"].content)
        for key, tensor in load_file(tmp_path / f"{name}.safetensors").items():
            assert tensor.equal(sent[key]), f"{name}: {key}"
        if name != "show-attend-tell":  # it was pushed again
            assert sums[name] == pytest.approx(sum(t.double().sum().item() for t in sent.values())), name
    for name in ("converted-vgg", "converted-visual-bert"):
        files = hub.files(f"user/{name}")
        assert {"README.md", "config.json", "model.safetensors"} <= set(files)
        assert f'from_pretrained("user/{name}"' in files["README.md"].content.decode()
    # Small and large files, in one piece and in parts.
    assert any("/part/2" in request for request in hub.requests)
    assert any(request.startswith("PUT /lfs/") and "/part/" not in request for request in hub.requests)


FAIL = """
    import time
    import pytest
    from huggingface_hub import HfApi, get_session
    from huggingface_hub.errors import HfHubHTTPError
    from tests.hub.checkpoints import checkpoints

    time.sleep = lambda seconds: None  # the pauses between tries
    api, model = HfApi(), checkpoints()["spatial-transformer"].model

    def faults(*faults):
        assert get_session().put(f"{api.endpoint}/faults", json=faults).status_code == 200

    def has_model(repo_id):
        return api.repo_exists(repo_id) and api.file_exists(repo_id, "config.json")

    def told(error):
        return str(error.value) + " ".join(getattr(error.value, "__notes__", []))

    with pytest.raises(HfHubHTTPError, match="401") as error:
        model.push_to_hub("user/bad-token", token="bad-token")
    assert not api.repo_exists("user/bad-token")
    with pytest.raises(HfHubHTTPError, match="403"):
        model.push_to_hub("somebody/theirs")
    assert not api.repo_exists("somebody/theirs")
    HfApi(token="other-token").create_repo("somebody/taken")
    with pytest.raises(HfHubHTTPError, match="403") as error:
        model.push_to_hub("somebody/taken")
    assert "Nothing from" in told(error) and "somebody/taken" in told(error)
    assert not has_model("somebody/taken")

    # A connection that is cut once half of a file is through, and a server that is ill for a while: tried again.
    for number, (request, action, times) in enumerate(
        [("PUT /lfs/", "cut", 2), ("PUT /lfs/", 500, 2), ("POST .*/preupload/", 503, 2), ("POST .*/batch", 502, 1)]
    ):
        faults((request, action, times))
        model.push_to_hub(f"user/recovered-{number}")
        assert has_model(f"user/recovered-{number}")
        model.lm_head.bias.data[0] += 1.0  # so that weights must be sent each time

    # One that stays cut, and a commit that fails: an error, and nothing to be seen of the model.
    for number, (request, action) in enumerate(
        [("PUT /lfs/", "cut"), ("PUT /lfs/", 500), ("POST .*/commit/", 503), ("POST .*/commit/", "cut")]
    ):
        repo_id = f"user/failed-{number}"
        faults((request, action, 99))
        with pytest.raises(Exception) as error:
            model.push_to_hub(repo_id)
        assert "Nothing from" in told(error) and repo_id in told(error)
        assert api.list_repo_files(repo_id) == [".gitattributes"]
        faults()
        model.push_to_hub(repo_id)  # the same again, when the hub is well
        assert has_model(repo_id)
        model.lm_head.bias.data[0] += 1.0
"""


def test_failures_are_told_or_overcome(hub, tmp_path):
    run(FAIL, hub, tmp_path)
    for name in ("recovered-0", "recovered-1", "failed-0", "failed-3"):
        assert load(hub.files(f"user/{name}")["model.safetensors"].content)


TRAIN = """
    import os
    import torch
    from huggingface_hub import HfApi, ModelCard
    from PIL import Image
    from transformers import set_seed
    from hf_vg.data import CaptionCollator
    from hf_vg.training import VgTrainer, VgTrainingArguments
    from tests.common import random_images
    from tests.models.test_modeling_show_attend_tell import tiny_config, tiny_processor
    from hf_vg import ShowAttendTellForConditionalGeneration

    class Rows(torch.utils.data.Dataset):
        images = random_images(8)
        def __len__(self):
            return 8
        def __getitem__(self, index):
            return {"image": self.images[index], "captions": ["a red circle"]}

    def trainer(output_dir, max_steps, **kwargs):
        set_seed(0)
        args = VgTrainingArguments(
            output_dir=output_dir, max_steps=max_steps, per_device_train_batch_size=2, use_cpu=True, save_steps=2,
            remove_unused_columns=False, report_to="none", learning_rate=0.05, lr_scheduler_type="constant",
            disable_tqdm=True, **kwargs,
        )
        return VgTrainer(
            model=ShowAttendTellForConditionalGeneration(tiny_config()), args=args, train_dataset=Rows(),
            data_collator=CaptionCollator(tiny_processor()), processing_class=tiny_processor(), dataset_name="scenes",
        )
"""

PUSH_FOLDER = (
    TRAIN
    + """
    killed = trainer("trained", 2, push_to_hub=True, hub_model_id="user/killed")
    for parameter in killed.model.parameters():
        parameter.data.mul_(2)  # weights that the Hub has from another test would not be sent
    killed.push_to_hub()
"""
)


def test_a_push_that_is_killed_is_completed_by_the_next(hub, tmp_path):
    """If a push is killed while it uploads or commits weights, nothing changes on the Hub or on disk."""
    weights = None
    for request, fault in (("PUT /lfs/", "hang"), ("POST .*/user/killed/commit/", "hang")):
        hub.faults.append((request, fault, 999))
        hub.requests.clear()
        process = start(PUSH_FOLDER, hub, tmp_path)
        while process.poll() is None and not any(re.search(request, made) for made in hub.requests):
            time.sleep(0.05)
        process.kill()
        process.communicate()
        hub.faults.clear()
        assert process.returncode == -signal.SIGKILL
        assert set(hub.files("user/killed")) == {".gitattributes"}
        # The local folder is complete, without traces of the kill.
        assert not load_checkpoint(tmp_path / "trained", "captions").training
        weights = weights or (tmp_path / "trained" / "model.safetensors").read_bytes()
        assert not [*(tmp_path / "trained").rglob("*.tmp")]
    run(PUSH_FOLDER, hub, tmp_path)
    files = hub.files("user/killed")
    assert files["model.safetensors"].content == weights == (tmp_path / "trained" / "model.safetensors").read_bytes()
    assert {"config.json", "README.md", "tokenizer.json"} <= {*files}


RESUME = (
    TRAIN
    + """
    import time
    import pytest
    from huggingface_hub import get_session
    from hf_vg.training import publishing_trainer
    first = trainer("first", 4, push_to_hub=True, hub_model_id="user/trained", hub_strategy="checkpoint",
                    hub_token="good-token")
    first.train()
    first.save_model()
    first.save_metrics("test", {"bleu1": 0.5, "true_seen": 0.25, "words": 3})
    Image.new("RGB", (8, 8)).save("first/attention.png")
    first.publish(figure="first/attention.png", example=Image.new("RGB", (20, 16), "red"))

    api = HfApi()
    files = set(api.list_repo_files("user/trained"))
    assert {"model.safetensors", "modeling_show_attend_tell.py", "image_to_text.py", "tokenizer.json", "attention.png",
            "example.png", "last-checkpoint/optimizer.pt", "last-checkpoint/trainer_state.json"} <= files
    assert not any("training_args.bin" in name or name.startswith(("checkpoint-", "_push")) for name in files)
    assert "last-checkpoint/README.md" not in files  # which would name a folder of this machine
    assert not [name for name in os.listdir("first") if name.startswith("_push")]
    card = ModelCard.load("user/trained")
    card.validate()
    results = {result.metric_name: result for result in card.data.eval_results}
    assert results["BLEU-1"].metric_value == 50.0 and results["BLEU-1"].dataset_name == "scenes"
    assert card.data.license == "apache-2.0" and "| learning rate | 0.05 |" in card.text
    assert "(attention.png)" in card.text and "25.0%" in card.text
    assert 'hf_hub_download("user/trained", "example.png")' in card.text

    # On another machine, it ends as if it had never stopped.
    whole = trainer("whole", 6)
    whole.train()
    sha = api.model_info("user/trained").sha
    for number, name in enumerate(("user/trained", f"user/trained@{sha}")):
        second = trainer(f"second-{number}", 6)
        second.train(resume_from_checkpoint=name)
        assert second.state.global_step == 6
        for key, tensor in whole.model.state_dict().items():
            assert torch.equal(second.model.state_dict()[key], tensor), key
    # Without being told to push at first, under the folder's name and in the background.
    assert second.push_to_hub(blocking=False).result().oid == api.model_info("user/second-1").sha

    # A checkpoint that can not be uploaded is told of, training goes on, and the model arrives in the end.
    time.sleep, warned = lambda seconds: None, []
    publishing_trainer.logger.warning = warned.append
    get_session().put(f"{api.endpoint}/faults", json=[("POST .*/unlucky/commit/", 503, 1)])
    unlucky = trainer("unlucky", 2, push_to_hub=True, hub_model_id="user/unlucky")
    unlucky.train()
    assert len(warned) == 1 and "could not be uploaded" in warned[0] and "503" in warned[0]
    assert "model.safetensors" not in api.list_repo_files("user/unlucky")
    unlucky.save_model()
    assert "model.safetensors" in api.list_repo_files("user/unlucky")

    api.create_repo("user/empty")
    for name, message in (("user/nobody", "no such repository"), ("user/trained@never", "repository or revision"),
                          ("user/empty", "neither 'last-checkpoint' nor"), ("a/b/c", "must have the form")):
        with pytest.raises(ValueError, match=message):
            second.train(resume_from_checkpoint=name)
"""
)

TWO_RANKS = (
    TRAIN
    + """
    both = trainer("both", 1, ddp_backend="gloo", hub_model_id="user/both", hub_token="good-token")
    assert both.args.world_size == 2
    both.train()
    pushed = both.push_to_hub()
    assert (pushed is not None) == (both.args.process_index == 0)
"""
)


def test_training_goes_on_from_the_hub(hub, tmp_path):
    run(RESUME, hub, tmp_path)
    assert not [name for name, file in hub.files("user/trained").items() if b"good-token" in file.content]


def test_only_the_first_rank_publishes(hub, tmp_path):
    run(TWO_RANKS, hub, tmp_path, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    assert hub.repos["user/both"].log == ["initial commit", "End of training"]
    assert len([request for request in hub.requests if request == "POST /api/models/user/both/commit/main"]) == 1
    assert {"README.md", "model.safetensors"} <= set(hub.files("user/both"))
