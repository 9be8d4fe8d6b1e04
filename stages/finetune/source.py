"""What training starts from: the base model, its tokenizer, and the examples the config names."""

from pathlib import Path

from artifacts.errors import BadInput
from artifacts.hf_model import HFModel, read_model, tokenizer_problems
from artifacts.tokenizer_files import CONFIG, TOKENIZER, adds_bos, load_tokenizer, read_tokenizer
from stages.finetune.config import Files, FinetuneConfig
from stages.finetune.dataset import Encoder
from stages.finetune.examples import Example, read_examples

WORLD_EXAMPLES = Path("world") / "sft.jsonl"
"""Where a corpus keeps the questions about the first half of its world, in alpaca form."""


def read_base(directory: Path, max_length: int) -> tuple[HFModel, Encoder]:
    """The base and its tokenizer. Raises BadInput naming everything that does not fit together."""
    model, files = read_model(directory), read_tokenizer(directory)
    problems = tokenizer_problems(model, files)
    eos_id = files.special.get("eos_token")
    if eos_id is None:
        problems.append(
            f"{directory / CONFIG}: eos_token is missing; without it the model cannot learn to stop"
        )
    positions = model.architecture.max_positions
    if max_length > positions:
        problems.append(f"finetune.max_length: is {max_length}; the base has {positions} positions")
    if problems or eos_id is None:
        raise BadInput(*problems)
    tokenizer = load_tokenizer(directory / TOKENIZER)
    bos = files.special.get("bos_token")
    begin = (bos,) if bos is not None and adds_bos(tokenizer, files.config, bos) else ()
    return model, Encoder(tokenizer, eos_id, begin)


def read_data(config: FinetuneConfig, corpus: Path | None) -> list[Example]:
    """The examples, in the order of the files. Raises BadInput naming file and line."""
    if isinstance(config.data, Files):
        return read_examples(config.data.paths(), config.data.format)
    if corpus is None:
        raise BadInput("inputs.corpus: is missing; data: world needs the corpus of that world")
    path = corpus / WORLD_EXAMPLES
    if not path.is_file():
        raise BadInput(f"{path}: is missing; data: world needs a corpus with a world source")
    return read_examples([path], "alpaca")
