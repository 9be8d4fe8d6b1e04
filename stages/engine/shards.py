"""A process's part of a model, from and to tensors of the whole by Hugging Face name.

Here alone the layout meets the weights: what is stored is always the whole model's.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from artifacts.architecture import Architecture
from stages.engine import weights
from stages.engine.collectives import Slice
from stages.engine.groups import Mesh
from stages.engine.mesh import Piece, Place, is_divided, local_shape, pieces
from stages.engine.model import Decoder, Part
from stages.engine.precision import Precision


def make_decoder(shape: Architecture, mesh: Mesh, precision: Precision = "fp32") -> Decoder:
    """What the process at this place builds of the model; weights are still to be loaded."""
    place, local = mesh.place, local_shape(shape, mesh.place)
    vocabulary = None
    if mesh.tensor is not None:
        vocabulary = Slice(mesh.tensor, place.tensor, place.layout.tensor, local.vocab_size)
    return Decoder(local, None, Part(place.first, place.last, vocabulary), precision)


def load(
    decoder: Decoder, shape: Architecture, place: Place, tensors: Mapping[str, np.ndarray]
) -> None:
    """Set the decoder's parameters from the whole model's tensors. Raises BadInput."""
    held = dict(decoder.parameters_and_names())
    for name, value in to_engine(shape, place, tensors).items():
        weights.set_parameter(held[name], value)


def to_engine(
    shape: Architecture, place: Place, tensors: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The whole model's tensors -> values of this place's parameters by engine name.

    Only this place's pieces are read. Raises BadInput.
    """
    held = pieces(shape, place)
    found = {
        name: tensors[piece.name][piece.index]
        for name, piece in held.items()
        if piece.name in tensors
    }
    return weights.to_engine(local_shape(shape, place), found, held)


def to_hf(
    shape: Architecture, place: Place, values: Mapping[str, np.ndarray]
) -> Iterator[tuple[Piece, np.ndarray]]:
    """This place's values by engine name -> (which part of the whole model, tensor)."""
    held = pieces(shape, place)
    for name, value in weights.to_hf(local_shape(shape, place), values, held):
        yield held[name], value


def read(decoder: Decoder, shape: Architecture, place: Place) -> Iterator[tuple[Piece, np.ndarray]]:
    """The decoder's parameters as parts of the whole model's tensors, one after the other."""
    held = {name: p.asnumpy() for name, p in decoder.parameters_and_names()}
    return to_hf(shape, place, held)


def own(
    place: Place, tensors: Iterator[tuple[Piece, np.ndarray]]
) -> Iterator[tuple[Piece, np.ndarray]]:
    """Without what another place holds as well and answers for; so all together give each once."""
    for piece, value in tensors:
        if not is_divided(piece.name) and place.tensor > 0:
            continue
        if piece.name == "model.embed_tokens.weight" and not place.first:
            continue
        yield piece, value


def is_counted(shape: Architecture, place: Place) -> dict[str, bool]:
    """Engine name -> whether this place answers for the parameter where all places are summed.

    What several hold whole is the first slice's; a tied embedding is the first stage's.
    """
    found: dict[str, bool] = {}
    held = pieces(shape, place)
    for slot in weights.slots(local_shape(shape, place), held):
        own = is_divided(slot.hf_name) or place.tensor == 0
        if slot.parameter == "embedding":
            own = own and place.first
        found[slot.parameter] = own
    return found
