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
"""The texts of model cards: one entry per model, dataset and paper."""

from typing import Any, NamedTuple


class About(NamedTuple):
    """The text of a card about a model class."""

    auto_class: str
    kind: str | None = None  # selects the usage snippet in the template
    summary: str = ""
    pipeline_tag: str = "feature-extraction"
    tags: tuple[str, ...] = ("visual-grounding",)
    papers: tuple[str, ...] = ()
    figure_text: str = "Outputs of the model for a few examples."
    speaks: bool = True  # whether the model reads or writes text
    limits: str = "The model only knows the things and words of its training data. For anything else it is wrong."


class DatasetAbout(NamedTuple):
    """The text of a card about a dataset."""

    name: str
    text: str
    license: str
    model_license: str | None = None
    limits: str = ""
    on_hub: bool = False


_CAPTIONER_LIMITS = (
    "Captions follow the training captions, and may name things that are not in the image. A map shows where the "
    "model looked when it chose a word. This is not always where the object is."
)
_GROUNDED: dict[str, Any] = {
    "tags": ("visual-grounding", "attention-supervision"),
    "papers": ("samaran2021", "li2019"),
    "figure_text": "Words of captions, and the regions that the model attends to for each word.",
    "limits": "The model chooses among the given regions. It cannot find an object that no region shows.",
}

MODELS = {
    "ShowAttendTellForConditionalGeneration": About(
        auto_class="AutoModelForImageTextToText",
        kind="captioner",
        summary="Show, Attend and Tell describes an image in one sentence, and shows where it looked for each word. "
        "An LSTM attends to the feature map of a convolutional network.",
        pipeline_tag="image-to-text",
        tags=("image-captioning", "visual-attention"),
        papers=("xu2015",),
        figure_text="Images, and where the model looked for each word of its caption.",
        limits=_CAPTIONER_LIMITS,
    ),
    "SpatialTransformerCaptionerForConditionalGeneration": About(
        auto_class="AutoModelForImageTextToText",
        kind="captioner",
        summary="This Transformer describes an image in one sentence. The encoder uses self-attention over the "
        "feature map of a convolutional network, and the decoder attends to it for each word.",
        pipeline_tag="image-to-text",
        tags=("image-captioning", "visual-attention"),
        papers=("springenberg2018",),
        figure_text="Images, and where the model looked for each word of its caption.",
        limits=_CAPTIONER_LIMITS,
    ),
    **{
        f"{family}Model": About(
            auto_class="AutoModel",
            summary=f"The encoder and the decoder of a {family}, without the output layer over words.",
            pipeline_tag="image-feature-extraction",
            tags=("image-captioning", "visual-attention"),
            papers=(paper,),
        )
        for family, paper in (("ShowAttendTell", "xu2015"), ("SpatialTransformerCaptioner", "springenberg2018"))
    },
    "VseScnlmForConditionalGeneration": About(
        auto_class="AutoModelForImageTextToText",
        kind="describer",
        summary="A structure-content language model. It describes an image from its vector in a joint space of images "
        "and sentences: it fills sequences of part-of-speech tags with words that fit the vector.",
        pipeline_tag="image-to-text",
        tags=("image-captioning", "visual-semantic-embedding"),
        papers=("kiros2014",),
        limits="Captions follow the training captions, and may name things that are not in the image.",
    ),
    "VseScnlmModel": About(
        auto_class="AutoModel",
        kind="space",
        summary="A joint space of images and sentences. Images and sentences that belong together have similar "
        "vectors, so you can search images with sentences and sentences with images.",
        pipeline_tag="zero-shot-image-classification",
        tags=("visual-semantic-embedding", "image-text-retrieval"),
        papers=("kiros2014",),
    ),
    **dict.fromkeys(
        ("SelfAttnGroundedEncoderForPreTraining", "SelfAttnGroundedEncoderModel"),
        About(
            auto_class="AutoModel",
            kind="encoder",
            summary="A visually grounded sentence encoder. It turns sentences into vectors with self-attention, and "
            "was trained to predict the image of a caption, another caption of the same image, or both.",
            pipeline_tag="feature-extraction",
            tags=("sentence-embeddings", "visual-grounding"),
            papers=("yoo2017", "kiela2017"),
            figure_text="Sentences, and the attention of the encoder to each word.",
        ),
    ),
    "GroundedVisualBertForVGP": About(
        auto_class="AutoModelForPreTraining",
        kind="vgp",
        summary="VisualBERT from pixels and boxes. Its attention was supervised with phrases and the regions that "
        "show them. It predicts which of two captions match an image, and how two phrases are related.",
        **_GROUNDED,
    ),
    "GroundedVisualBertForQuestionAnswering": About(
        auto_class="AutoModelForVisualQuestionAnswering",
        kind="vqa",
        summary="VisualBERT from pixels and boxes, trained to answer questions about images.",
        pipeline_tag="visual-question-answering",
        **_GROUNDED,
    ),
    "GroundedVisualBertForReferringExpression": About(
        auto_class="AutoModelForTokenClassification",
        kind="referring",
        summary="VisualBERT from pixels and boxes, trained to find the region that an expression refers to.",
        pipeline_tag="zero-shot-object-detection",
        **_GROUNDED,
    ),
    "GroundedVisualBertModel": About(
        auto_class="AutoModel",
        kind="visual_bert",
        summary="VisualBERT from pixels and boxes, without a task head. It returns the states of words and regions.",
        **_GROUNDED,
    ),
    "VggBackbone": About(
        auto_class="AutoModel",
        kind="backbone",
        summary="The convolutions of VGG. They compute the feature map of an image, and captioners use them as a "
        "backbone.",
        pipeline_tag="image-feature-extraction",
        tags=("image-features",),
        papers=("simonyan2014",),
        speaks=False,
        limits="The fully connected layers are left out, so the model does not classify images.",
    ),
    "VggForImageClassification": About(
        auto_class="AutoModelForImageClassification",
        kind="backbone",
        summary="VGG with its classifier. Captioners use its convolutions as a backbone, and fc7 gives 4,096 features "
        "per image.",
        pipeline_tag="image-classification",
        tags=("image-features",),
        papers=("simonyan2014",),
        speaks=False,
        limits="The 1,000 ImageNet classes have numbers and no names, as in torchvision's file.",
    ),
}

_FLICKR = (
    "The photos come from Flickr and are offered for non-commercial research and education. See Flickr's terms of use "
    "and the terms of the dataset."
)
_COCO = "The annotations are CC BY 4.0. The photos come from Flickr, and Flickr's terms of use apply to them."
DATASETS = {
    "scenes": DatasetAbout(
        name="scenes",
        text="*scenes*: pictures of colored shapes that hf_vg draws itself, with captions, phrases, paraphrases, "
        "questions and referring expressions. They contain no data of other people.",
        license="Apache-2.0, the license of hf_vg, which draws the scenes.",
        model_license="apache-2.0",
        limits="The model has only seen drawings of colored shapes. It is for tests and teaching, and its outputs "
        "for photos are meaningless.",
    ),
    "flickr8k": DatasetAbout(name="Flickr8k", text="Flickr8k: 8,000 photos with five captions each.", license=_FLICKR),
    "flickr30k": DatasetAbout(
        name="Flickr30k", text="Flickr30k: 31,000 photos with five captions each.", license=_FLICKR
    ),
    "flickr30k_entities": DatasetAbout(
        name="Flickr30k Entities",
        text="Flickr30k Entities: the photos and captions of Flickr30k, with boxes for the phrases that name "
        "something, and the types of visually grounded paraphrases.",
        license=_FLICKR,
    ),
    "coco": DatasetAbout(name="COCO", text="COCO: photos with five captions each.", license=_COCO),
    "karpathy": DatasetAbout(
        name="Karpathy's splits",
        text="Photos and captions of Flickr8k, Flickr30k or COCO, in the splits of Karpathy and Fei-Fei.",
        license=_FLICKR,
    ),
    "vqa": DatasetAbout(name="VQA v2", text="VQA v2: questions about photos of COCO.", license=_COCO),
    **{
        name: DatasetAbout(
            name=title,
            text=f"{title}: expressions that refer to one object in a photo of COCO.",
            license="See the dataset's license. The photos come from Flickr, and Flickr's terms of use apply to them.",
        )
        for name, title in (("refcoco", "RefCOCO"), ("refcoco+", "RefCOCO+"), ("refcocog", "RefCOCOg"))
    },
}

PAPERS = {
    "xu2015": """@inproceedings{xu2015show,
  title = {Show, Attend and Tell: Neural Image Caption Generation with Visual Attention},
  author = {Xu, Kelvin and Ba, Jimmy and Kiros, Ryan and Cho, Kyunghyun and Courville, Aaron and Salakhutdinov, Ruslan
            and Zemel, Richard and Bengio, Yoshua},
  booktitle = {International Conference on Machine Learning},
  year = {2015},
  url = {https://arxiv.org/abs/1502.03044}
}""",
    "springenberg2018": """@inproceedings{springenberg2018image,
  title = {Image-to-Text Transduction with Spatial Self-Attention},
  author = {Springenberg, Sebastian and Lakomkin, Egor and Weber, Cornelius and Wermter, Stefan},
  booktitle = {European Symposium on Artificial Neural Networks},
  year = {2018}
}""",
    "yoo2017": """@article{yoo2017improving,
  title = {Improving Visually Grounded Sentence Representations with Self-Attention},
  author = {Yoo, Kang Min and Shin, Youhyun and Lee, Sang-goo},
  journal = {arXiv preprint arXiv:1712.00609},
  year = {2017}
}""",
    "kiela2017": """@article{kiela2017learning,
  title = {Learning Visually Grounded Sentence Representations},
  author = {Kiela, Douwe and Conneau, Alexis and Jabri, Allan and Nickel, Maximilian},
  journal = {arXiv preprint arXiv:1707.06320},
  year = {2017}
}""",
    "kiros2014": """@article{kiros2014unifying,
  title = {Unifying Visual-Semantic Embeddings with Multimodal Neural Language Models},
  author = {Kiros, Ryan and Salakhutdinov, Ruslan and Zemel, Richard S.},
  journal = {arXiv preprint arXiv:1411.2539},
  year = {2014}
}""",
    "samaran2021": """@inproceedings{samaran2021attending,
  title = {Attending Self-Attention: A Case Study of Visually Grounded Supervision in Vision-and-Language
           Transformers},
  author = {Samaran, Jules and Garcia, Noa and Otani, Mayu and Chu, Chenhui and Nakashima, Yuta},
  booktitle = {ACL-IJCNLP Student Research Workshop},
  year = {2021}
}""",
    "li2019": """@article{li2019visualbert,
  title = {VisualBERT: A Simple and Performant Baseline for Vision and Language},
  author = {Li, Liunian Harold and Yatskar, Mark and Yin, Da and Hsieh, Cho-Jui and Chang, Kai-Wei},
  journal = {arXiv preprint arXiv:1908.03557},
  year = {2019}
}""",
    "simonyan2014": """@article{simonyan2014very,
  title = {Very Deep Convolutional Networks for Large-Scale Image Recognition},
  author = {Simonyan, Karen and Zisserman, Andrew},
  journal = {arXiv preprint arXiv:1409.1556},
  year = {2014}
}""",
}
