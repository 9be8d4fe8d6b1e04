"""A bundle with all that is needed to answer: graph, tokenizer, chat template, adapters."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from artifacts.errors import BadInput
from artifacts.manifest import MANIFEST, Manifest, problems_with_files, read_manifest
from artifacts.onnx_bundle import OnnxModel, graph_file
from artifacts.references import find_named
from artifacts.store import artifact_path
from artifacts.validation import shown
from serving.answer import Answer
from stages.evaluate.sampling import Sampling
from stages.evaluate.text import TextCodec


def find_bundle(reference: str, store: Path) -> Path:
    """A bundle by its directory, moved or not, by a release or channel, or by first digits.

    `latest` is the newest release of `store`, a channel's name what stands there; a release or
    bundle in the store goes by the first digits of its digest, or by its directory. Raises BadInput
    if there is none, if it is another kind of artifact, or if its bytes are not its manifest's.
    """
    path = _found(reference, store)
    if (path / MANIFEST).is_file() and (damage := problems_with_files(path, read_manifest(path))):
        raise BadInput(*damage)
    return path


def _found(reference: str, store: Path) -> Path:
    if graph_file(Path(reference)).is_file():
        return Path(reference)
    path = find_named(reference, store)
    manifest = read_manifest(path)
    if manifest.kind == "release":
        return _bundle_of(path, manifest)
    if manifest.kind != "onnx-bundle":
        raise BadInput(
            f"{path}: is of kind {manifest.kind}; an onnx-bundle or a release would be right"
        )
    return path


def _bundle_of(release: Path, manifest: Manifest) -> Path:
    """The bundle a release is about, in the store that the release stands in."""
    entry = manifest.inputs.get("bundle")
    if entry is None:
        raise BadInput(f"{release}: names no bundle")
    path = artifact_path(release.resolve().parent.parent, entry.kind, entry.identity)
    if read_manifest(path).digest != entry.digest:
        raise BadInput(f"{path}: is not the bundle that {release} is about; its digest differs")
    return path


class Served:
    """A loaded bundle."""

    def __init__(self, directory: Path, threads: int = 0, adapters: Mapping[str, Path] = {}):
        """Raises BadInput naming the file that is missing, broken or of another model."""
        self.model = OnnxModel(directory, threads)
        self.codec = TextCodec(directory)
        if problems := self.codec.files.problems_with(self.model.vocab_size, {}):
            raise BadInput(*problems)
        for name, path in adapters.items():
            self.model.load_adapter(name, path)
        self.longest = self.model.max_positions
        """Most tokens of prompt and answer together."""

    def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Messages as one prompt that asks for the assistant's turn. Raises BadInput."""
        if self.codec.chat_template is None:
            raise BadInput(
                "messages: this model has no chat template; ask for a completion of a prompt"
            )
        return self.codec.render_chat([dict(each) for each in messages], True)

    def encode(self, prompt: str) -> np.ndarray:
        """Token ids int32 [T] of a prompt. Raises BadInput if it is no text, or has no token."""
        try:
            prompt.encode()
        except UnicodeEncodeError:  # bytes of the terminal's that Python could not read
            raise BadInput("prompt: is not UTF-8") from None
        (ids,) = self.codec.encode([prompt])
        if not len(ids):
            raise BadInput("prompt: has no token; a text of one character at least would do")
        return ids

    def ids(self, prompt: Sequence[int]) -> np.ndarray:
        """A prompt that is given as token ids. Raises BadInput if one does not exist."""
        for id in prompt:
            if not 0 <= id < self.model.vocab_size:
                raise BadInput(
                    f"prompt: token {shown(id)} does not exist; "
                    f"the vocabulary ends at {self.model.vocab_size - 1}"
                )
        return np.asarray(prompt, np.int32)

    def answer(self, prompt: np.ndarray, sampling: Sampling, adapter: str | None = None) -> Answer:
        """An answer to be drawn. Raises BadInput if the prompt leaves it no room."""
        if len(prompt) >= self.longest:
            raise BadInput(
                f"prompt: has {len(prompt)} tokens; "
                f"prompt and answer together may have {self.longest}"
            )
        return Answer(
            prompt, sampling, self.model.eos_ids, self.longest, self.codec.decode, adapter
        )
