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
import pytest
import torch
from transformers import Trainer, TrainingArguments

from hf_vg import VseScnlmConfig, VseScnlmModel
from hf_vg.training import HardestNegatives


class RecordingModel(VseScnlmModel):
    def forward(self, **kwargs):
        self.seen.append(self.config.max_violation)
        return super().forward(**kwargs)


def test_hardest_negatives_count_after_their_share_of_the_training(tmp_path):
    model = RecordingModel(VseScnlmConfig(feature_size=4, vocab_size=9, embedding_size=4, hidden_size=4))
    model.seen = []
    rows = [
        {"image_features": torch.randn(4), "input_ids": [3, 0], "attention_mask": [1, 1], "image_ids": index}
        for index in range(10)
    ]
    args = TrainingArguments(
        tmp_path,
        per_device_train_batch_size=2,
        num_train_epochs=1,
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    args.label_names = ["image_ids"]
    Trainer(model, args, train_dataset=rows, callbacks=[HardestNegatives(0.4)]).train()
    assert model.seen == [False, False, True, True, True]
    assert model.config.max_violation


def test_a_share_is_from_0_to_1():
    with pytest.raises(ValueError, match="from 0 to 1, got 3"):
        HardestNegatives(3)
