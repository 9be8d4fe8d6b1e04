"""The tokenizer's files in a model directory: read, checked against the model, copied."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from artifacts.errors import BadInput
from artifacts.json_files import read_object, write_object
from artifacts.validation import plain, shown

TOKENIZER, CONFIG, SPECIAL = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
CHAT_TEMPLATE = "chat_template.jinja"
OPTIONAL = (CHAT_TEMPLATE,)
SENTENCEPIECE, ADDED = "tokenizer.model", "added_tokens.json"
KNOWN_FILES = (TOKENIZER, CONFIG, SPECIAL, *OPTIONAL, SENTENCEPIECE, ADDED)
"""All files beside a model that have a say in its tokens."""
PROBE = "A text, 一段文字, é\n\0"
"""What any tokenizer must be able to read, by unknown tokens if need be."""
ROLES = ("bos_token", "eos_token", "pad_token", "unk_token")


@dataclass(frozen=True)
class TokenizerFiles:
    """A directory's tokenizer, as far as a model must agree with it."""

    directory: Path
    rows: int
    """Rows the embedding needs at least: the highest token id plus 1."""
    config: dict[str, Any]
    special: dict[str, int]
    """Token id by role (`eos_token`, ...), for the roles that are set."""
    notes: tuple[str, ...] = ()
    """Sentences about what was changed on the way, for the user to read."""

    def problems_with(self, vocab_size: int, ids: dict[str, int | None]) -> list[str]:
        """Sentences for everything in which a model and this tokenizer disagree.

        `ids` gives the model's token id by role; None says that the model leaves it open.
        """
        problems = []
        if self.rows > vocab_size:
            problems.append(
                f"{self.directory / TOKENIZER}: has token ids up to {self.rows - 1}, "
                f"the model's vocabulary ends at {vocab_size - 1}"
            )
        for role, wanted in ids.items():
            found = self.special.get(role)
            if wanted is not None and found is not None and wanted != found:
                problems.append(
                    f"{self.directory / CONFIG}: {role} is token {found}, the model's is {wanted}"
                )
        return problems

    def copy_to(self, directory: Path, chat_template: str | None = None) -> None:
        """Write the files into another directory, without any reference to remote code.

        `chat_template` takes the place of the one that stands here, in whichever file.
        """
        for name in (TOKENIZER, *OPTIONAL):
            if (self.directory / name).is_file():
                (directory / name).write_bytes((self.directory / name).read_bytes())
        config = {key: value for key, value in self.config.items() if key != "auto_map"}
        if chat_template is not None:
            (directory / CHAT_TEMPLATE).write_text(chat_template, encoding="utf-8")
            config.pop("chat_template", None)
        write_object(directory / CONFIG, config)
        special = self.directory / SPECIAL
        if special.is_file():
            (directory / SPECIAL).write_bytes(special.read_bytes())
        else:  # transformers 5 no longer writes it, older readers look for it
            write_object(
                directory / SPECIAL, {role: config[role] for role in ROLES if config.get(role)}
            )


def load_tokenizer(path: Path) -> Tokenizer:
    """A `tokenizer.json` that reads texts whole. Raises BadInput if it is none, or fails to."""
    doing = "is no tokenizer"
    try:
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        doing = "cannot read every text"
        tokenizer.encode(PROBE)
    # The tokenizers package raises bare Exception, and BaseException where its Rust code panics.
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise BadInput(f"{path}: {doing}: {plain(str(error))}") from None
    return tokenizer


def adds_bos(tokenizer: Tokenizer, config: dict[str, Any], bos_id: int | None) -> bool:
    """Whether BOS goes before a text, in training as in scoring and serving.

    If `config`, that of tokenizer_config.json, says add_bos_token: true, or says nothing and the
    tokenizer's post-processor puts it there.
    """
    if bos_id is None:
        return False
    stated = config.get("add_bos_token")
    return bool(stated) if stated is not None else tokenizer.encode("a").ids[:1] == [bos_id]


def read_tokenizer(directory: Path) -> TokenizerFiles:
    """Read a directory's tokenizer files.

    Raises BadInput naming the file that is missing or broken, or a special token that the
    tokenizer does not have.
    """
    path = directory / TOKENIZER
    if not path.is_file():
        raise BadInput(f"{path}: is missing")
    tokenizer = load_tokenizer(path)
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    if not vocabulary:
        raise BadInput(f"{path}: has no tokens")
    config = read_object(directory / CONFIG)
    special: dict[str, int] = {}
    problems = []
    for role in ROLES:
        token = config.get(role)
        text = token.get("content") if isinstance(token, dict) else token
        if text is None:
            continue
        if not isinstance(text, str):
            problems.append(f"{directory / CONFIG}: {role} is {shown(text)}; a text would be right")
        elif text in vocabulary:
            special[role] = vocabulary[text]
        else:
            problems.append(
                f"{directory / CONFIG}: {role} is {shown(text)}, {TOKENIZER} has no such token"
            )
    if problems:
        raise BadInput(*problems)
    return TokenizerFiles(directory, max(vocabulary.values()) + 1, config, special)
