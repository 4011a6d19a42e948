"""What a score costs on top of an embedding when both come from one forward pass, and what it costs by itself.

    python -m benchmarks.one_pass ../shared/realdata/web_mix.parquet --documents 300 --layers 4

The model has random weights: a BERT of the size asked for, with the one-output head of FineWeb-Edu's classifier. Three
things are timed on the same texts in the same batches, alternating, medians of the repeats: the encoder alone with
CLS pooling ("embedding"), the scorer's pass that gives score and vector ("one pass"), and the embedding followed by a
pass of `AutoModelForSequenceClassification` ("two passes"). Tokenising is inside all of them.
"""

import argparse
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from transformers import BertForSequenceClassification, BertModel
from transformers.utils import logging

from benchmarks.bert import save_classifier
from benchmarks.measuring import in_turns
from benchmarks.tables import show
from fineweb_mask.models.forward.encoder import encoded
from fineweb_mask.models.quality.transformer import EduScorer
from fineweb_mask.models.settings.quality import EduScorerSettings

SMOKE_WORDS = "piano sonata melody violin concert harmony football goal match striker league stadium the of and".split()


class Passes:
    """The three ways to the same numbers, over the scorer's own tokens and batches."""

    def __init__(self, folder: Path, device: str, batch_tokens: int) -> None:
        settings = EduScorerSettings(model=str(folder))
        self.scorer = EduScorer(settings, str(folder), device=device, batch_tokens=batch_tokens)
        dtype = torch.bfloat16 if self.scorer.device.startswith("cuda") else torch.float32
        self.model = BertForSequenceClassification.from_pretrained(folder, dtype=dtype).to(self.scorer.device).eval()
        self.encoder = (
            BertModel.from_pretrained(folder, add_pooling_layer=False, dtype=dtype).to(self.scorer.device).eval()
        )

    def one_pass(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return scores and vectors as the pipeline computes them."""
        scores, wait = self.scorer.score_and_encode(self.scorer.tokenise(texts))
        return scores, wait().vectors

    def embedding(self, texts: list[str]) -> np.ndarray:
        """Return the encoder's own vectors: CLS pooling, no pooler and no head."""

        def first(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.encoder(**inputs).last_hidden_state[:, 0]

        return encoded(self._run(texts, self.scorer.dimensions, first))().vectors

    def score(self, texts: list[str]) -> np.ndarray:
        """Return the classifier's outputs from a pass of its own."""
        return self._run(texts, 1, lambda inputs: self.model(**inputs).logits)[:, 0].cpu().numpy()

    def _run(
        self, texts: list[str], columns: int, forward: Callable[[dict[str, torch.Tensor]], torch.Tensor]
    ) -> torch.Tensor:
        return self.scorer.run(self.scorer.tokenise(texts), columns, lambda batch, _: forward(batch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, nargs="?", help="Parquet file with a text column; not needed with --smoke")
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--layers", type=int, default=12, help="12 and a hidden size of 768 is BERT-base")
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batch-tokens", type=int, default=16_384)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--smoke", action="store_true", help="a few made-up texts and a small model: seconds")
    arguments = parser.parse_args()
    logging.set_verbosity_error()  # the encoder alone leaves the head's weights unread, on purpose
    logging.disable_progress_bar()
    texts = read_texts(arguments)
    with tempfile.TemporaryDirectory() as folder:
        save_classifier(Path(folder), texts, arguments.layers, arguments.hidden)
        passes = Passes(Path(folder), arguments.device, arguments.batch_tokens)
        report(passes, texts, arguments)


def read_texts(arguments: argparse.Namespace) -> list[str]:
    if arguments.smoke:
        arguments.layers, arguments.hidden, arguments.repeats = 2, 64, 3
        dice = random.Random(0)
        return [" ".join(dice.choice(SMOKE_WORDS) for _ in range(dice.randrange(5, 600))) for _ in range(40)]
    if arguments.source is None:
        raise SystemExit("give a Parquet file of documents, or --smoke")
    table = pq.read_table(arguments.source, columns=["text"])["text"].drop_null().to_pylist()
    step = max(1, len(table) // arguments.documents)
    return table[::step][: arguments.documents]


def report(passes: Passes, texts: list[str], arguments: argparse.Namespace) -> None:
    """Check that the ways agree, time them in turn, and print a table."""
    scores, vectors = passes.one_pass(texts)
    tolerance = 1e-4 if arguments.device == "cpu" else 5e-2  # bfloat16 on a GPU
    np.testing.assert_allclose(scores, passes.score(texts), atol=tolerance)
    np.testing.assert_allclose(vectors, passes.embedding(texts), atol=tolerance)
    ways: dict[str, Callable[[], object]] = {
        "embedding": lambda: passes.embedding(texts),
        "one pass": lambda: passes.one_pass(texts),
        "two passes": lambda: (passes.embedding(texts), passes.score(texts)),
    }
    seconds = in_turns(ways, arguments.repeats)
    table = [
        [name, f"{taken:.2f}", f"{len(texts) / taken:.1f}", f"{taken / seconds['embedding']:.3f}"]
        for name, taken in seconds.items()
    ]
    show(
        f"{len(texts)} documents, {arguments.layers} layers of {arguments.hidden}, {arguments.device}, "
        f"medians of {arguments.repeats}, threads {torch.get_num_threads()}",
        ["", "s", "documents/s", "to embedding"],
        table,
    )


if __name__ == "__main__":
    main()
