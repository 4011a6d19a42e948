"""Define the settings of the probe, which trains one small language model on each of several selections."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fineweb_mask.models.settings.base import Settings

PresetName = Literal["cpu", "20m", "150m"]
ArmName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=60)]
SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$", max_length=60)]
POOL, GROUPS = "pool", "groups"
"""Names of the held-out sets that are drawn from the corpus: of all of it, and of each group of a column."""
MOST_REPEATS = 4
"""How often a document may be trained on (https://arxiv.org/abs/2305.16264 finds little loss up to four times)."""


class Preset(Settings):
    """A language model, how it is trained, and what it is measured on."""

    hidden_size: int
    layers: int
    heads: int
    intermediate_size: int  # of the gated feed-forward network
    tied: bool  # whether the output layer shares the embeddings of the tokens
    vocabulary: int | None  # tokens of the tokenizer that is trained on the corpus; None takes `tokenizer`
    tokenizer: str | None = None  # a tokenizer.json, or its address hf://owner/repository/file
    context: int  # tokens
    batch: int  # sequences of `context` tokens
    micro_batch: int  # sequences that are computed at one time
    first_weights: float = 0.02  # their standard deviation
    learning_rate: float  # at its largest
    last_learning_rate: float = 0.1  # as a share of the largest
    fork_learning_rate: float = 1 / 30  # of a training that goes on from a common start, as a share of the largest
    warmup_steps: float  # a number below 1 is a share of the steps
    weight_decay: float = 0.1
    beta2: float = 0.95
    tokens: int  # that each model is trained on
    evaluations: int  # last checkpoints over which a loss is averaged
    held_out: int  # most documents of a set
    held_out_per_group: int
    tasks: tuple[str, ...] = ()  # downstream tasks of lm-eval
    is_verdict: bool  # whether models of this size predict larger ones


PREDICTIVE_TASKS = ("arc_easy", "arc_challenge", "mmlu", "hellaswag", "piqa", "commonsense_qa", "openbookqa")
"""Tasks on which small models decide as large ones do; on BoolQ, WinoGrande and GSM8K they toss a coin.

Measured on 25 corpora in https://arxiv.org/abs/2508.13144: 69 to 93% of the decisions against 46 to 50%; OpenBookQA is
not among the published figures.
"""
DATADECIDE = {
    "tied": False,
    "vocabulary": None,
    "tokenizer": "hf://allenai/gpt-neox-olmo-dolma-v1_5/tokenizer.json",
    "context": 2048,
    "evaluations": 5,
    "held_out": 2000,
    "held_out_per_group": 200,
    "tasks": PREDICTIVE_TASKS,
    "is_verdict": True,
}
"""What DataDecide's sizes have in common (https://arxiv.org/abs/2504.11393)."""
PRESETS: Mapping[PresetName, Preset] = MappingProxyType(
    {
        "cpu": Preset(
            hidden_size=128,
            layers=4,
            heads=4,
            intermediate_size=344,
            tied=True,
            vocabulary=4096,
            context=256,
            batch=4,
            micro_batch=4,
            first_weights=0.06,  # larger than usual, as the learning rate, for so short a training
            learning_rate=8e-3,
            warmup_steps=0.05,
            tokens=1_000_000,
            evaluations=2,
            held_out=200,
            held_out_per_group=50,
            is_verdict=False,
        ),
        "20m": Preset(
            hidden_size=192,
            layers=16,
            heads=8,
            intermediate_size=768,
            batch=64,
            micro_batch=16,
            learning_rate=8.4e-3,
            warmup_steps=146,  # one token for each parameter
            tokens=14_584 * 64 * 2048,
            **DATADECIDE,
        ),
        "150m": Preset(
            hidden_size=768,
            layers=12,
            heads=12,
            intermediate_size=3072,
            batch=192,
            micro_batch=16,
            learning_rate=4.2e-3,
            warmup_steps=387,
            tokens=38_157 * 192 * 2048,
            **DATADECIDE,
        ),
    }
)
"""By name. `20m` and `150m` are DataDecide's sizes, whose noise and predictive power are known from 1,050 runs."""


class Arm(Settings):
    """One selection or dataset that a model is trained on; set either `selector` or `path`."""

    name: ArmName = Field(description="Name in tables and charts.")
    selector: str | None = Field(None, description="A selector of `compare`, which selects from the recipe's corpus.")
    changes: dict[str, Any] = Field(
        {},
        description="Keys of the recipe's `selection` that this arm changes: `near_duplicates.weight: 0`.",
    )
    path: str | None = Field(None, description="File, folder or URL of a dataset, instead of a selection.")
    shuffled: float = Field(
        0.0, ge=0, le=1, description="Share of the tokens that are exchanged at random: damage of a known size."
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.selector is None) == (self.path is None):
            raise ValueError(f"arm {self.name}: set either selector or path")
        if self.path is not None and self.changes:
            raise ValueError(f"arm {self.name}: a dataset has no settings to change")
        return self


class ProbeSettings(Settings):
    """What the probe trains and measures."""

    arms: list[Arm] = Field(
        [Arm(name=name, selector=name) for name in ("mean_field", "random", "top_quality")],
        min_length=2,
        description="What is compared.",
    )
    seeds: int = Field(3, ge=1, le=100, description="Models of each arm. No verdict comes from one.")
    from_scratch: bool = Field(
        False, description="Train every model from random weights, not on from a common start for each seed."
    )
    preset: PresetName = Field("cpu", description="Size of the model: `cpu` (1.3 million parameters), `20m`, `150m`.")
    heldout: dict[SetName, str] = Field({}, description="Name and file of each held-out set of your own.")
    by: str | None = Field(None, description="Column of groups, such as topics, of which each gets held-out documents.")
    benchmarks: list[str] = Field([], description="Files of texts that no model may be trained on.")
    tokens: int | None = Field(None, ge=1, description="Tokens of each training; the preset's, if an arm has as many.")
    tokenizer: str | None = Field(None, description="A tokenizer.json, or its hf:// address, instead of the preset's.")
    tasks: list[str] | None = Field(None, description="Downstream tasks of lm-eval instead of the preset's.")
    tasks_folder: str | None = Field(None, description="Folder with lm-eval task files of your own.")
    held_out_share: float = Field(0.1, gt=0, le=0.5, description="Most of the corpus, or of a group, that is held out.")
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Seed of the first model; the others follow.")

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [arm.name for arm in self.arms]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two arms are called {twice[0]}: name one of them, as in other=mean_field[lamb=0.5]")
        if taken := {POOL, GROUPS} & set(self.heldout):
            raise ValueError(f"heldout: {sorted(taken)[0]!r} is the probe's own set, choose another name")
        return self
