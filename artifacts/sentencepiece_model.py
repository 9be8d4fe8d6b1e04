"""A SentencePiece `tokenizer.model` as a `tokenizer.json`, where the two can say the same.

The conversion is not believed but tried: every piece and a set of texts must give SentencePiece's
own ids, else the file is refused.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, processors

from artifacts.errors import BadInput
from artifacts.json_files import read_object, write_object
from artifacts.tokenizer_files import (
    ADDED,
    CHAT_TEMPLATE,
    CONFIG,
    SENTENCEPIECE,
    TOKENIZER,
    TokenizerFiles,
    read_tokenizer,
)
from artifacts.validation import plain, shown

SPACE = "\u2581"
"""What SentencePiece writes for a space."""
UNIGRAM, BPE = 1, 2
CONTROL, USER_DEFINED = 3, 4
LONGEST_PIECE = 1000
PROBES = (
    "A text, with words and 12,345 numbers.",
    " leading, trailing ",
    "two  spaces,   three",
    "line\nbreak\n\n\ttab",
    "中文分词，问题：答案。",
    "é ü ß ñ Ångström naïve café",
    "😀 \u00e9 \ufb01 \u3000full width ＡＢ",
    "def f(x):\n    return x ** 2",
    "",
)
"""Texts on which the two must agree, beside the pieces themselves."""


def take_tokenizer(source: Path, target: Path) -> TokenizerFiles:
    """Write the tokenizer of a model directory into another; `tokenizer.json` as it is if there.

    Raises BadInput if there is neither a `tokenizer.json` nor a `tokenizer.model` that converts.
    """
    if (source / TOKENIZER).is_file():
        files = read_tokenizer(source)
        files.copy_to(target)
        return files
    path = source / SENTENCEPIECE
    if not path.is_file():
        raise BadInput(
            f"{source / TOKENIZER}: is missing, and so is {SENTENCEPIECE}; transformers writes it "
            "when a tokenizer is loaded and saved"
        )
    config = read_object(source / CONFIG) if (source / CONFIG).is_file() else {}
    added = read_object(source / ADDED) if (source / ADDED).is_file() else {}
    tokenizer, config = convert(path, config, added)
    tokenizer.save(str(target / TOKENIZER))
    write_object(target / CONFIG, config)
    files = read_tokenizer(target)
    template = source / CHAT_TEMPLATE
    if template.is_file():
        (target / template.name).write_bytes(template.read_bytes())
    files.copy_to(target)
    note = f"{path}: was converted; on {len(PROBES)} texts and every piece the ids are the same"
    return replace(files, notes=(note,))


def convert(
    path: Path, config: dict[str, Any], added: dict[str, Any]
) -> tuple[Tokenizer, dict[str, Any]]:
    """The same tokenizer for `tokenizers`, and its `tokenizer_config.json`.

    `config` is what stood beside it, `added` maps tokens beyond the model's to their ids. Raises
    BadInput.
    """
    # Here, since only these models need them.
    from sentencepiece import SentencePieceProcessor
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    model = ModelProto()
    try:
        data = path.read_bytes()
        model.ParseFromString(data)
        peer = SentencePieceProcessor(model_proto=data)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None
    # protobuf's DecodeError, and bare RuntimeErrors of SentencePiece.
    except Exception as error:
        raise BadInput(f"{path}: is no SentencePiece model: {plain(str(error))}") from None
    if not model.pieces or max(len(piece.piece) for piece in model.pieces) > LONGEST_PIECE:
        raise BadInput(
            f"{path}: is no SentencePiece model: it has no pieces, or one of more than "
            f"{LONGEST_PIECE} characters"
        )
    kind = model.trainer_spec.model_type
    if kind not in (UNIGRAM, BPE):
        raise BadInput(f"{path}: its model_type is {kind}, supported is unigram (1) or BPE (2)")
    try:
        tokenizer = Tokenizer(_bpe(model) if kind == BPE else _unigram(model))
    except Exception as error:  # the tokenizers package raises bare Exception
        raise BadInput(f"{path}: cannot be converted: {plain(str(error))}") from None
    tokenizer.normalizer = _normalizer(model.normalizer_spec)
    tokenizer.decoder = _decoder(model)
    _add_tokens(tokenizer, model, added, path)
    config = {**_roles(peer), **config, "tokenizer_class": "PreTrainedTokenizerFast"}
    _check(tokenizer, peer, model, path)
    _put_around(tokenizer, config)
    return tokenizer, {key: value for key, value in config.items() if key != "auto_map"}


def _bpe(model: Any) -> models.BPE:
    scores = {piece.piece: piece.score for piece in model.pieces}
    ids = {piece.piece: index for index, piece in enumerate(model.pieces)}
    found = []
    for whole, score in scores.items():
        for cut in range(1, len(whole)):
            left, right = whole[:cut], whole[cut:]
            if left in ids and right in ids:
                found.append((-score, ids[whole], ids[left], left, right))
    merges = [(left, right) for *_, left, right in sorted(found)]
    return models.BPE(
        vocab=ids,
        merges=merges,
        unk_token=_unknown(model),
        fuse_unk=True,
        byte_fallback=bool(model.trainer_spec.byte_fallback),
    )


def _unigram(model: Any) -> models.Unigram:
    return models.Unigram(
        [(piece.piece, piece.score) for piece in model.pieces],
        unk_id=model.trainer_spec.unk_id,
        byte_fallback=bool(model.trainer_spec.byte_fallback),
    )


def _unknown(model: Any) -> str | None:
    unknown = [piece.piece for piece in model.pieces if piece.type == piece.UNKNOWN]
    return unknown[0] if unknown else None


def _normalizer(spec: Any) -> Any:
    steps: list[Any] = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        steps += [
            normalizers.Replace(Regex("^ +| +$"), ""),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    if spec.add_dummy_prefix:
        steps.append(normalizers.Prepend(SPACE))
    return normalizers.Sequence([*steps, normalizers.Replace(" ", SPACE)])


def _decoder(model: Any) -> Any:
    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.normalizer_spec.add_dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


def _add_tokens(tokenizer: Tokenizer, model: Any, added: dict[str, Any], path: Path) -> None:
    for piece in model.pieces:
        if piece.type in (CONTROL, USER_DEFINED, piece.UNKNOWN):
            special = piece.type != USER_DEFINED
            token = AddedToken(piece.piece, normalized=False, special=special)
            (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])
    for text, wanted in sorted(added.items(), key=lambda item: str(item[1])):
        if tokenizer.token_to_id(text) is None:
            tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True)])
        found = tokenizer.token_to_id(text)
        if found != wanted:
            raise BadInput(
                f"{path.with_name(ADDED)}: {plain(text)} is token {shown(wanted)}; after the "
                f"{len(model.pieces)} pieces of {path.name} it would be {found}"
            )


def _roles(peer: Any) -> dict[str, Any]:
    ids = {
        "bos_token": peer.bos_id(),
        "eos_token": peer.eos_id(),
        "unk_token": peer.unk_id(),
        "pad_token": peer.pad_id(),
    }
    return {role: peer.id_to_piece(each) for role, each in ids.items() if each >= 0}


def _check(tokenizer: Tokenizer, peer: Any, model: Any, path: Path) -> None:
    """Raise BadInput unless SentencePiece gives the same ids."""
    plain_kinds = [piece.piece for piece in model.pieces if piece.type in (1, USER_DEFINED)]
    for text in (*PROBES, *(piece.replace(SPACE, " ") for piece in plain_kinds)):
        wanted = peer.encode(text)
        found = tokenizer.encode(text, add_special_tokens=False).ids
        if found != wanted:
            raise BadInput(
                f"{path}: cannot be converted: {shown(text)} would be tokens {shown(found)}, "
                f"SentencePiece says {shown(wanted)}"
            )


def _put_around(tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """What the tokenizer itself puts before and after a text, as Llama's class does by default."""
    before = config.get("add_bos_token", True)
    after = config.get("add_eos_token", False)
    texts = {}
    for role, wanted in (("bos_token", before), ("eos_token", after)):
        token = config.get(role)
        text = token.get("content") if isinstance(token, dict) else token
        if wanted and isinstance(text, str) and tokenizer.token_to_id(text) is not None:
            texts[role] = text
    if not texts:
        return
    single = [texts["bos_token"]] if "bos_token" in texts else []
    single += ["$A", *([texts["eos_token"]] if "eos_token" in texts else [])]
    special = [(text, tokenizer.token_to_id(text)) for text in dict.fromkeys(texts.values())]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
