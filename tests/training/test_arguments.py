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
from dataclasses import dataclass, field

import pytest
from transformers import TrainingArguments

from hf_vg.training import CaptionerArguments, VgTrainingArguments, parse_arguments


@dataclass
class Sizes:
    width: int = 1
    rate: float = 0.1
    wide: bool = False
    options: dict = field(default_factory=dict)
    limit: int | None = 9


def parse(tmp_path, text: str, *flags: str) -> Sizes:
    config = tmp_path / "config.yaml"
    config.write_text(text)
    (sizes,) = parse_arguments([Sizes], config, flags)
    return sizes


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path):
    assert parse(tmp_path, "") == Sizes()
    assert parse(tmp_path, "width: 2\nrate: 5e-4\nwide: true") == Sizes(2, 5e-4, True)
    assert parse(tmp_path, "width: 2\nrate: 5e-4", "--width", "3", "--wide") == Sizes(3, 5e-4, True)


def test_null_takes_back_what_a_file_sets(tmp_path):
    assert parse(tmp_path, "limit: 2").limit == 2
    assert parse(tmp_path, "limit: 2", "--limit", "null", "--wide").limit is None
    with pytest.raises(SystemExit):
        parse(tmp_path, "", "--width", "null")


def test_another_file_can_be_named(tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text("width: 7")
    assert parse(tmp_path, "width: 2", "--config", str(other)).width == 7


def test_mappings_are_merged_key_by_key(tmp_path):
    flags = ("--options.b", "[3, 4]", "--options.c=yes", "--options.d", "-1.5")
    sizes = parse(tmp_path, "options: {a: 1, b: 2}", *flags)
    assert sizes.options == {"a": 1, "b": [3, 4], "c": True, "d": -1.5}


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("widht: 2", [], "config.yaml: unknown argument widht, did you mean width?"),
        ("width: many", [], "--width: invalid int value: 'many'"),
        ("options: 3", [], "config.yaml: options must be a mapping of fields to values, got 3."),
        ("", ["--widht", "2"], "unknown argument --widht, did you mean --width?"),
        ("", ["--r", "2"], "unknown argument --r, did you mean --rate?"),
        ("", ["--xyzzy=2"], "unknown argument --xyzzy."),
        ("", ["--options.a"], "--options.a needs a value"),
        ("", ["--options.a", "["], "not YAML"),
        ("", ["stray"], "'stray' does not belong to a flag"),
        ("", ["--width", "many"], "invalid int value: 'many'"),
    ],
)
def test_a_wrong_name_is_told_the_right_one(tmp_path, capsys, text, flags, message):
    with pytest.raises(SystemExit) as stop:
        parse(tmp_path, text, *flags)
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert message in printed and printed.startswith("error: ") and printed.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--lr", "1"], "unknown argument --lr, did you mean --learning_rate?"),
        (["--epochs", "1"], "did you mean --num_train_epochs?"),
        (["--model.hiden_size", "30"], "unknown field hiden_size of ShowAttendTellConfig, did you mean hidden_size?"),
        (
            ["--model.backbone_config", "{model_type: vgg, dephts: [1]}"],
            "unknown field dephts of VggConfig, did you mean depths?",
        ),
        (["--model_type", "show_atend_tell"], "unknown model type show_atend_tell, did you mean show_attend_tell?"),
        (["--model_type", "spatial_transformer_captioner", "--model.attention_penalty", "1"], "unknown field"),
        (["--reward", "cidr"], "invalid choice: 'cidr'"),
        (["--early_stopping_patience", "1"], "load_best_model_at_end"),
    ],
)
def test_a_wrong_field_is_told_the_right_one(tmp_path, capsys, flags, message):
    for text, given in (("", flags), (_as_yaml(flags), [])):
        config = tmp_path / "config.yaml"
        config.write_text(f"output_dir: {tmp_path}\n{text}")
        with pytest.raises(SystemExit) as stop:
            parse_arguments((CaptionerArguments, VgTrainingArguments), config, given)
        assert stop.value.code == 2
        assert message.replace("--", "") in capsys.readouterr().err.replace("--", "")


def _as_yaml(flags: list[str]) -> str:
    lines = []
    for flag, value in zip(flags[::2], flags[1::2], strict=True):
        name, dot, key = flag.removeprefix("--").partition(".")
        lines.append(f"{name}: {{{key}: {value}}}" if dot else f"{name}: {value}")
    return "\n".join(lines)


@pytest.mark.parametrize("text", ["- a list", "a: [", "just words"])
def test_a_file_that_is_no_mapping_is_named(tmp_path, text):
    with pytest.raises(SystemExit, match="config.yaml"):
        parse(tmp_path, text)


def test_a_missing_file_is_named():
    with pytest.raises(SystemExit, match="'none.yaml' cannot be read: No such file"):
        parse_arguments([Sizes], "none.yaml", [])


def test_recipe_arguments_share_no_name(tmp_path):
    """One flat set of names holds the recipe's arguments and Trainer's."""
    config = tmp_path / "config.yaml"
    config.write_text(f"output_dir: {tmp_path}/out\nlearning_rate: 1e-4\nmodel: {{hidden_size: 4}}")
    args, training_args = parse_arguments(
        (CaptionerArguments, TrainingArguments), config, ["--model.dropout", "0.5", "--num_train_images", "7"]
    )
    assert args.model == {"hidden_size": 4, "dropout": 0.5} and args.num_train_images == 7
    assert training_args.learning_rate == 1e-4


def test_a_token_is_not_among_the_settings_that_are_published(tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text(f"output_dir: {tmp_path}\nuse_cpu: true\nhub_token: secret")
    _, training_args = parse_arguments([Sizes, VgTrainingArguments], config, [])
    assert training_args.hub_token == "secret" and training_args.recipe_settings["use_cpu"] is True
    assert "secret" not in str(training_args.recipe_settings)
