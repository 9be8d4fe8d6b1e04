"""The corpus's tokenizer in the stock library: the same ids, the same special tokens."""

from pathlib import Path

import pytest

from stages.corpus.tokenizer import train_tokenizer, write_trained
from stages.corpus.world import World, documents

transformers = pytest.importorskip("transformers")


def test_transformers_reads_the_same_tokens(tmp_path: Path) -> None:
    texts = list(documents(World(2, 20, 6), 500, 0.5, 0.1, 0.7))
    trained = train_tokenizer(texts, 500)
    write_trained(tmp_path, trained)
    stock = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert len(stock) == trained.vocab_size
    assert (stock.eos_token_id, stock.bos_token_id, stock.pad_token_id) == (0, 0, 1)
    probes = [*texts[:50], "  two  spaces\n\n\ttab", "未见过的字 ünseen 🙂", ""]
    for text, ids in zip(probes, trained.encode(probes), strict=True):
        assert stock(text)["input_ids"] == ids
        assert stock.decode(ids, clean_up_tokenization_spaces=False) == text
    chat = stock("<|im_start|>user\nhi<|im_end|>\n")["input_ids"]
    assert (chat[0], 3 in chat) == (2, True)
