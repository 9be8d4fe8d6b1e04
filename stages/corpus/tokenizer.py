"""The tokenizer: a byte-level BPE trained here, or an existing one taken over as it is."""

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from artifacts.errors import BadInput
from artifacts.json_files import read_object
from artifacts.tokenizer_files import adds_bos, load_tokenizer
from stages.corpus.config import ChatTemplate, TokenizerFiles

END, PAD, CHAT_BEGIN, CHAT_END = "<|endoftext|>", "<|pad|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END, PAD, CHAT_BEGIN, CHAT_END)
"""Ids 0 to 3. The first ends documents; no token begins them."""


@dataclass(frozen=True)
class CorpusTokenizer:
    """A tokenizer with the ids that a corpus needs."""

    tokenizer: Tokenizer
    vocab_size: int
    """One more than the highest id."""
    bos_id: int | None
    """What goes before a text, if anything: the rule is `adds_bos`."""
    eos_id: int
    pad_id: int

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, its beginning token included, its end token not."""
        # Else a text that mentions "<|endoftext|>" would end its own document.
        self.tokenizer.encode_special_tokens = True
        begin = [] if self.bos_id is None else [self.bos_id]
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [begin + encoding.ids for encoding in encodings]


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> CorpusTokenizer:
    """A byte-level BPE of `vocab_size` entries, or of fewer if the text gives no more."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return CorpusTokenizer(tokenizer, tokenizer.get_vocab_size(), bos_id=None, eos_id=0, pad_id=1)


def write_trained(directory: Path, trained: CorpusTokenizer) -> None:
    """Write a trained tokenizer as transformers reads it."""
    # Written by us: the library's own exception for a full disk is no OSError.
    text = trained.tokenizer.to_str(pretty=False)
    (directory / "tokenizer.json").write_text(text, encoding="utf-8")
    special = {"bos_token": END, "eos_token": END, "pad_token": PAD, "unk_token": None}
    special = {name: token for name, token in special.items() if token}
    config = {
        **special,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "additional_special_tokens": [CHAT_BEGIN, CHAT_END],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1_000_000_000,
    }
    chat = {"additional_special_tokens": [CHAT_BEGIN, CHAT_END]}
    _write_json(directory / TokenizerFiles[0], config)
    _write_json(directory / TokenizerFiles[1], special | chat)


def open_tokenizer(path: Path, eos_token: str | None) -> CorpusTokenizer:
    """An existing tokenizer.json, with what stands beside it. Raises BadInput if it is none, or
    if its end token is unknown, or its beginning token is another than bos_token."""
    tokenizer = load_tokenizer(path)
    declared = _declared(path)
    eos = eos_token or declared.get("eos_token")
    if eos is None:
        raise BadInput(
            "corpus.tokenizer.eos_token: is missing; no tokenizer_config.json beside "
            f"{path} names the token that ends a document"
        )
    ids = {"eos": tokenizer.token_to_id(eos), "pad": None}
    if ids["eos"] is None:
        raise BadInput(f"corpus.tokenizer.eos_token: is {eos!r}; {path} has no such token")
    if pad := declared.get("pad_token"):
        ids["pad"] = tokenizer.token_to_id(pad)
    around = tokenizer.encode("").ids
    if len(around) > 1 or around == [ids["eos"]]:
        raise BadInput(
            f"{path}: puts tokens {around} around a text; one beginning token or none is supported"
        )
    return CorpusTokenizer(
        tokenizer,
        vocab_size=max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1,
        bos_id=_beginning(path, tokenizer, declared, around),
        eos_id=ids["eos"],
        pad_id=ids["eos"] if ids["pad"] is None else ids["pad"],
    )


def _beginning(
    path: Path, tokenizer: Tokenizer, declared: dict[str, str], around: list[int]
) -> int | None:
    """Id of the token that scoring will put before a text, of the files that will stand there."""
    file = path.with_name(TokenizerFiles[0])
    config = read_object(file) if file.is_file() else declared
    bos = _text_of(config.get("bos_token"))
    bos_id = tokenizer.token_to_id(bos) if isinstance(bos, str) else None
    if adds_bos(tokenizer, config, bos_id):
        return bos_id
    if around and config.get("add_bos_token") is None:
        begin = tokenizer.id_to_token(around[0])
        raise BadInput(
            f"{path}: puts {begin!r} before a text, bos_token beside it is {bos!r}; "
            f"{file.name} with bos_token {begin!r}, or add_bos_token false, would be right"
        )
    return None


def copy_existing(path: Path, directory: Path, eos_token: str | None) -> None:
    """Take over an existing tokenizer's files byte for byte; write those that are missing.

    Only another end token than theirs is written into the copies: whoever reads them must end a
    text as the corpus does.
    """
    shutil.copyfile(path, directory / "tokenizer.json")
    declared = _declared(path)
    special = {
        name: token
        for name in ("bos_token", "eos_token", "pad_token")
        if (token := declared.get(name))
    }
    special |= {"eos_token": eos_token} if eos_token else {}
    special.setdefault("pad_token", special["eos_token"])
    defaults = ({**special, "tokenizer_class": "PreTrainedTokenizerFast"}, special)
    for name, content in zip(TokenizerFiles, defaults, strict=True):
        file = path.with_name(name)
        if not file.is_file():
            _write_json(directory / name, content)
        elif eos_token and _text_of((held := read_object(file)).get("eos_token")) != eos_token:
            _write_json(directory / name, held | {"eos_token": eos_token})
        else:
            shutil.copyfile(file, directory / name)
    if (template := path.with_name(ChatTemplate)).is_file():
        shutil.copyfile(template, directory / ChatTemplate)


def _declared(path: Path) -> dict[str, str]:
    """Special tokens named by the files beside a tokenizer.json, by role."""
    found: dict[str, str] = {}
    for name in reversed(TokenizerFiles):  # tokenizer_config.json has the last word
        file = path.with_name(name)
        if not file.is_file():
            continue
        for key, value in read_object(file).items():
            token = _text_of(value)
            if key in ("bos_token", "eos_token", "pad_token") and isinstance(token, str):
                found[key] = token
    return found


def _text_of(token: Any) -> Any:
    """A special token's text, which may stand in an object with how it is stripped."""
    return token.get("content") if isinstance(token, dict) else token


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
