"""Train the zoo, put it into the package, measure it; find words for steering.

The steps are ``train``, ``ship``, ``evaluate`` and ``words``.
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import companion
from training.corpus import TrainingError, read, train_tokenizer
from training.evaluate import evaluate
from training.loop import train
from training.recipes import POSITIONS, RECIPES, SHIPPED
from training.ship import ship
from training.words import write_words

RUNS = Path("runs")
ZOO = companion.zoo.tokenizer().parent
WORDS = Path(companion.data.__path__[0]) / "words.csv"


def main() -> int:
    """Run one step."""
    parser = argparse.ArgumentParser(prog="python -m training", description=__doc__)
    parser.add_argument("step", choices=["train", "ship", "evaluate", "words"])
    parser.add_argument("corpus", type=Path, help="folder of UTF-8 texts, *.txt")
    parser.add_argument("--book", type=Path, help="held-out text to evaluate on")
    parser.add_argument("--only", nargs="+", choices=RECIPES, default=list(SHIPPED), metavar="NAME")
    arguments = parser.parse_args()
    if arguments.step == "evaluate" and not arguments.book:
        parser.error("evaluate needs --book FILE, a text that no model saw")
    try:
        corpus = read(arguments.corpus)
        if arguments.step == "evaluate":
            evaluate(corpus, arguments.book, [f"zoo/{name}" for name in arguments.only])
            return 0
        if arguments.step == "words":
            write_words(corpus, WORDS)
            return 0
        tokenizer = train_tokenizer(corpus, POSITIONS)
        tokens = corpus.tokens(tokenizer)
        if arguments.step == "ship":
            ship(corpus, len(tokens), tokenizer, RUNS, ZOO, arguments.only)
            return 0
        print(f"{len(corpus.texts)} texts, {len(tokens):,} tokens; states and logs go to {RUNS}/", flush=True)
        for name in arguments.only:
            train(RECIPES[name], name, tokens, RUNS / name)
    except TrainingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    logging.getLogger("transformers").setLevel(logging.ERROR)
    sys.exit(main())
