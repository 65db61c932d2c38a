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
"""What cards say of each model, dataset and paper."""

from typing import Any, NamedTuple


class About(NamedTuple):
    auto_class: str
    kind: str | None = None  # which snippet of the template shows how to use it
    summary: str = ""
    pipeline_tag: str = "feature-extraction"
    tags: tuple[str, ...] = ("visual-grounding",)
    papers: tuple[str, ...] = ()
    figure_text: str = "What the model makes of a few examples."
    speaks: bool = True  # reads or writes a language
    limits: str = "It knows what its training data shows, and the words in it: of anything else it speaks wrongly."


class DatasetAbout(NamedTuple):
    name: str
    text: str
    license: str
    model_license: str | None = None
    limits: str = ""
    on_hub: bool = False


_CAPTIONER_LIMITS = (
    "It writes what its training captions make likely, and may name things that are not there. A map shows where the "
    "model looked when it chose a word, which is not always where the thing is."
)
_GROUNDED: dict[str, Any] = {
    "tags": ("visual-grounding", "attention-supervision"),
    "papers": ("samaran2021", "li2019"),
    "figure_text": "Words of captions, and the regions that the model attends to for each.",
    "limits": "It chooses among the regions it is given, and cannot point to what no region shows.",
}

MODELS = {
    "ShowAttendTellForConditionalGeneration": About(
        auto_class="AutoModelForImageTextToText",
        kind="captioner",
        summary="Show, Attend and Tell describes an image in a sentence, and shows for each word where it looked: an "
        "LSTM reads the feature map of a convolutional network through visual attention.",
        pipeline_tag="image-to-text",
        tags=("image-captioning", "visual-attention"),
        papers=("xu2015",),
        figure_text="Each image, and where the model looked while it wrote each word of its caption.",
        limits=_CAPTIONER_LIMITS,
    ),
    "SpatialTransformerCaptionerForConditionalGeneration": About(
        auto_class="AutoModelForImageTextToText",
        kind="captioner",
        summary="This Transformer describes an image in a sentence: spatial self-attention over the feature map of a "
        "convolutional network, and attention to it for each word.",
        pipeline_tag="image-to-text",
        tags=("image-captioning", "visual-attention"),
        papers=("springenberg2018",),
        figure_text="Each image, and where the model looked while it wrote each word of its caption.",
        limits=_CAPTIONER_LIMITS,
    ),
    **{
        f"{family}Model": About(
            auto_class="AutoModel",
            summary=f"The encoder and the decoder of a {family}, without the layer that chooses words.",
            pipeline_tag="image-feature-extraction",
            tags=("image-captioning", "visual-attention"),
            papers=(paper,),
        )
        for family, paper in (("ShowAttendTell", "xu2015"), ("SpatialTransformerCaptioner", "springenberg2018"))
    },
    "VseScnlmForConditionalGeneration": About(
        auto_class="AutoModelForImageTextToText",
        kind="describer",
        summary="A structure-content language model, which describes an image from its vector in a joint space of "
        "images and sentences: it fills sequences of part-of-speech tags with words that fit the vector.",
        pipeline_tag="image-to-text",
        tags=("image-captioning", "visual-semantic-embedding"),
        papers=("kiros2014",),
        limits="It writes what its training captions make likely, and may name things that are not there.",
    ),
    "VseScnlmModel": About(
        auto_class="AutoModel",
        kind="space",
        summary="One space for images and sentences: those that belong together lie near each other, so that a "
        "sentence finds its image and an image its sentence.",
        pipeline_tag="zero-shot-image-classification",
        tags=("visual-semantic-embedding", "image-text-retrieval"),
        papers=("kiros2014",),
    ),
    **dict.fromkeys(
        ("SelfAttnGroundedEncoderForPreTraining", "SelfAttnGroundedEncoderModel"),
        About(
            auto_class="AutoModel",
            kind="encoder",
            summary="Makes vectors of sentences that know what the sentences look like: a self-attentive encoder, "
            "trained to predict the image of a caption, another caption of the same image, or both.",
            pipeline_tag="feature-extraction",
            tags=("sentence-embeddings", "visual-grounding"),
            papers=("yoo2017", "kiela2017"),
            figure_text="Sentences, and how much the encoder's attention looks at each word.",
        ),
    ),
    "GroundedVisualBertForVGP": About(
        auto_class="AutoModelForPreTraining",
        kind="vgp",
        summary="VisualBERT from pixels and boxes, whose attention was supervised by phrases and the regions that "
        "show them. It tells which of two captions are of an image, and how two phrases paraphrase each other.",
        **_GROUNDED,
    ),
    "GroundedVisualBertForQuestionAnswering": About(
        auto_class="AutoModelForVisualQuestionAnswering",
        kind="vqa",
        summary="Answers questions about an image: VisualBERT from pixels and boxes.",
        pipeline_tag="visual-question-answering",
        **_GROUNDED,
    ),
    "GroundedVisualBertForReferringExpression": About(
        auto_class="AutoModelForTokenClassification",
        kind="referring",
        summary="Finds the region of an image that an expression refers to: VisualBERT from pixels and boxes.",
        pipeline_tag="zero-shot-object-detection",
        **_GROUNDED,
    ),
    "GroundedVisualBertModel": About(
        auto_class="AutoModel",
        kind="visual_bert",
        summary="VisualBERT from pixels and boxes, without a head for any task: states of words and regions.",
        **_GROUNDED,
    ),
    "VggBackbone": About(
        auto_class="AutoModel",
        kind="backbone",
        summary="The convolutions of VGG, which make a feature map of an image. Captioners see through them.",
        pipeline_tag="image-feature-extraction",
        tags=("image-features",),
        papers=("simonyan2014",),
        speaks=False,
        limits="The fully connected layers are left out, so that it classifies nothing by itself.",
    ),
    "VggForImageClassification": About(
        auto_class="AutoModelForImageClassification",
        kind="backbone",
        summary="VGG with its classifier. Captioners see through its convolutions, and fc7 gives 4,096 numbers of an "
        "image.",
        pipeline_tag="image-classification",
        tags=("image-features",),
        papers=("simonyan2014",),
        speaks=False,
        limits="torchvision's file does not name the 1,000 classes of ImageNet, which are numbered.",
    ),
}

_FLICKR = (
    "The photographs come from Flickr, and are offered for non-commercial research and education: see Flickr's terms "
    "of use, and what the dataset's makers ask."
)
_COCO = "annotations CC BY 4.0; the photographs come from Flickr, and Flickr's terms of use apply to them."
DATASETS = {
    "scenes": DatasetAbout(
        name="scenes",
        text="*scenes*, the micro-world of coloured shapes that hf_vg draws on the spot, with captions, phrases, "
        "paraphrases, questions and referring expressions. Nothing was downloaded, and nobody is shown or quoted.",
        license="Apache-2.0, as hf_vg, which makes it.",
        model_license="apache-2.0",
        limits="It has only ever seen drawn scenes of coloured shapes: it is for tests and teaching, and says nothing "
        "sensible of photographs.",
    ),
    "flickr8k": DatasetAbout(
        name="Flickr8k", text="Flickr8k: 8,000 photographs with five captions each.", license=_FLICKR
    ),
    "flickr30k": DatasetAbout(
        name="Flickr30k", text="Flickr30k: 31,000 photographs with five captions each.", license=_FLICKR
    ),
    "flickr30k_entities": DatasetAbout(
        name="Flickr30k Entities",
        text="Flickr30k Entities: the photographs and captions of Flickr30k, with a box for each phrase that names "
        "something, and the types of visually grounded paraphrases.",
        license=_FLICKR,
    ),
    "coco": DatasetAbout(name="COCO", text="COCO: photographs with five captions each.", license=_COCO),
    "karpathy": DatasetAbout(
        name="Karpathy's splits",
        text="Photographs and captions of Flickr8k, Flickr30k or COCO, in the splits of Karpathy and Fei-Fei.",
        license=_FLICKR,
    ),
    "vqa": DatasetAbout(name="VQA v2", text="VQA v2: questions about photographs of COCO.", license=_COCO),
    **{
        name: DatasetAbout(
            name=title,
            text=f"{title}: expressions that refer to one object in photographs of COCO.",
            license="see the makers of its expressions; the photographs come from Flickr, and Flickr's terms of use "
            "apply to them.",
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
