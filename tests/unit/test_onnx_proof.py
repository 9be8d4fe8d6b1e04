"""The proof fails on every wrong graph: each mutation here is a mistake someone has made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from matplotlib.figure import Figure
from onnx import helper

from artifacts.errors import StageFailed
from artifacts.onnx_bundle import GRAPH, OnnxModel
from stages.engine import runtime
from stages.export.agreement import Agreement, CaseResult, run_cases
from stages.export.attention import MASKED
from stages.export.cases import Case
from stages.export.checks import pieces_check
from stages.export.engines import Lane, lane
from stages.export.proof import require
from stages.export.references import with_references
from stages.export.report import picture, table
from stages.export.structure import structure_problems
from tests.bundles import change_graph, exact, node, proof, set_constant, write_tiny_bundle
from tests.tiny_models import random_weights, tiny


def failed_kinds(agreement: Agreement) -> set[str]:
    return {each.kind for each in agreement.cases if each.problem}


def infinite_mask(graph: onnx.GraphProto) -> None:
    set_constant(graph, MASKED, -np.inf, np.float32)


def ignored_positions(graph: onnx.GraphProto) -> None:
    """Count columns instead of reading position_ids, as an export that lost the input does."""
    columns = node(graph, "Range", 1).output[0]
    cast = next(each for each in graph.node if each.input[:1] == ["position_ids"])
    unsqueeze = node(graph, "Unsqueeze", 2)
    assert unsqueeze.input[0] == cast.output[0]
    zero = helper.make_node("Sub", ["position_ids", "position_ids"], ["zero"])
    added = helper.make_node("Add", ["zero", columns], ["counted"])
    at = list(graph.node).index(cast)
    cast.input[0] = "counted"
    graph.node.insert(at, added)
    graph.node.insert(at, zero)


def forgotten_past(graph: onnx.GraphProto) -> None:
    """Queries counted from 0 instead of from the end of the past."""
    queries = node(graph, "Range", 1)
    keys = node(graph, "Range", 0)
    new = next(each for each in graph.node if each.op_type == "Sub").input[1]
    queries.input[0], queries.input[1] = keys.input[0], new


def interleaved_heads(graph: onnx.GraphProto) -> None:
    """Query head h reads key/value head h mod KV instead of h // group."""
    a = tiny()
    group = a.heads // a.kv_heads
    order = np.arange(a.heads).reshape(a.kv_heads, group).T.reshape(-1)
    for scaled in [each for each in graph.node if each.op_type == "Reshape"]:
        source = next(each for each in graph.node if scaled.input[0] in each.output)
        if source.op_type != "Mul":
            continue
        name = f"{scaled.name}.order"
        graph.initializer.append(helper.make_tensor(name, onnx.TensorProto.INT64, [4], order))
        gather = helper.make_node(
            "Gather", [scaled.input[0], name], [f"{name}.out"], name=name, axis=1
        )
        graph.node.insert(list(graph.node).index(scaled), gather)
        scaled.input[0] = gather.output[0]


def past_behind_the_new(graph: onnx.GraphProto) -> None:
    """New keys stand before the cached ones."""
    for concat in [each for each in graph.node if each.output[0].startswith("present.")]:
        concat.input[:] = concat.input[::-1]


def keys_for_values(graph: onnx.GraphProto) -> None:
    """The cached keys and values of a layer change places; their shapes are the same."""
    for concat in [each for each in graph.node if each.output[0].startswith("present.0.")]:
        old, new = (".key", ".value") if concat.input[0].endswith(".key") else (".value", ".key")
        concat.input[0] = concat.input[0].replace(old, new)


def no_causality(graph: onnx.GraphProto) -> None:
    visible = node(graph, "And")
    visible.input[0] = visible.input[1]


def half_rotation_interleaved(graph: onnx.GraphProto) -> None:
    """Sign of the rotation turned, as a wrong layout of the halves does."""
    node(graph, "Sub", 1).op_type = "Add"


def baked_batch(graph: onnx.GraphProto) -> None:
    set_constant(graph, [0, 0, 32], [2, -1, 32], np.int64)


def baked_length(graph: onnx.GraphProto) -> None:
    set_constant(graph, [0, 0, 4, 8], [-1, 7, 4, 8], np.int64)


@pytest.mark.parametrize(
    ("change", "caught_by"),
    [
        (infinite_mask, "left pad"),
        (ignored_positions, "spread positions"),
        (forgotten_past, "past"),
        (interleaved_heads, "whole"),
        (past_behind_the_new, "past"),
        (keys_for_values, "past"),
        (no_causality, "whole"),
        (half_rotation_interleaved, "whole"),
        (baked_batch, "whole"),
        (baked_length, "whole"),
    ],
)
def test_a_wrong_graph_is_not_proved(
    tmp_path: Path, change: Callable[[onnx.GraphProto], None], caught_by: str
) -> None:
    a = tiny()
    weights = write_tiny_bundle(tmp_path, a)
    change_graph(tmp_path / "bundle", change)
    agreement = proof(tmp_path / "bundle", a, weights)
    assert caught_by in failed_kinds(agreement)
    with pytest.raises(StageFailed, match="does not agree"):
        require(agreement)


def test_ignored_positions_show_where_tokens_are_missing(tmp_path: Path) -> None:
    """Left padding alone cannot show it: rotary embeddings only know distances."""
    a = tiny()
    weights = write_tiny_bundle(tmp_path, a)
    change_graph(tmp_path / "bundle", ignored_positions)
    kinds = failed_kinds(proof(tmp_path / "bundle", a, weights))
    assert {"holes", "holes, past", "spread positions"} <= kinds
    assert "left pad" not in kinds


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    a = tiny()
    weights = write_tiny_bundle(tmp_path, a)

    def drop(graph: onnx.GraphProto) -> None:
        ignored_positions(graph)
        zero = next(each for each in graph.node if list(each.output) == ["zero"])
        zero.input[:] = ["input_ids", "input_ids"]
        graph.input.remove(next(each for each in graph.input if each.name == "position_ids"))

    change_graph(tmp_path / "bundle", drop)
    agreement = proof(tmp_path / "bundle", a, weights)
    assert "input position_ids is missing" in agreement.structure
    assert all(each.problem for each in agreement.cases)


@pytest.mark.parametrize("change", [baked_batch, baked_length])
def test_baked_constants_are_seen_without_running(tmp_path: Path, change) -> None:
    a = tiny()
    write_tiny_bundle(tmp_path, a)
    change_graph(tmp_path / "bundle", change)
    graph = onnx.load(str(tmp_path / "bundle" / GRAPH), load_external_data=False)
    assert any(problem.startswith("Reshape") for problem in structure_problems(graph, a))


def test_a_baked_length_that_equals_a_model_size_is_seen_too(tmp_path: Path) -> None:
    """8 is also this model's head_dim, so that the constant alone looks innocent."""
    a = tiny()
    weights = write_tiny_bundle(tmp_path, a)
    change_graph(
        tmp_path / "bundle", lambda g: set_constant(g, [0, 0, 4, 8], [-1, 8, 4, 8], np.int64)
    )
    agreement = proof(tmp_path / "bundle", a, weights)
    assert any("shapes do not fit together" in problem for problem in agreement.structure)
    assert "whole" in failed_kinds(agreement)


def test_axes_named_wrongly_are_seen(tmp_path: Path) -> None:
    a = tiny()
    write_tiny_bundle(tmp_path, a)

    def fix(graph: onnx.GraphProto) -> None:
        graph.output[0].type.tensor_type.shape.dim[1].dim_value = 7

    change_graph(tmp_path / "bundle", fix)
    graph = onnx.load(str(tmp_path / "bundle" / GRAPH), load_external_data=False)
    (problem,) = structure_problems(graph, a)
    assert problem.startswith("output logits is float ['batch_size', 7, 260], not float")


def test_mindspores_own_export_is_dynamic_in_name_only(tmp_path: Path) -> None:
    """It passes at the one shape it was exported at, and the proof refuses it all the same."""
    runtime.start("CPU")
    from tests.baked import export_baked

    a = tiny(layers=1, kv_heads=4)
    weights = random_weights(a)
    write_tiny_bundle(tmp_path, a, weights)
    batch, past, new = 2, 5, 4
    export_baked(tmp_path / "bundle" / GRAPH, a, weights, batch, past, new)

    rng = np.random.default_rng(0)
    ids = rng.integers(0, a.vocab_size, (batch, past + new))
    full = np.ones(ids.shape, bool)
    positions = np.tile(np.arange(past + new), (batch, 1))
    reference = exact(a, weights)
    model = OnnxModel(tmp_path / "bundle", threads=1)
    own = Case("past", past, ids, full, positions)
    # Its one shape also serves the past only if that was made elsewhere: a second, right graph.
    write_tiny_bundle(tmp_path / "right", a, weights)
    right = OnnxModel(tmp_path / "right" / "bundle", threads=1)
    _, cache = right.forward(ids[:, :past], full[:, :past], positions[:, :past], None)
    logits, _ = model.forward(ids[:, past:], full, positions[:, past:], cache)
    assert np.abs(logits - reference(ids, full, positions)[:, past:]).max() < 1e-5

    agreement = proof(tmp_path / "bundle", a, weights)
    assert any("Reshape" in problem for problem in agreement.structure)
    assert any("output logits is" in problem for problem in agreement.structure)
    assert sum(each.problem is None for each in agreement.cases) == 0
    assert run_cases([Lane(model)], reference, [own], 1e-5)[0][0].problem
    with pytest.raises(StageFailed, match="more"):
        require(agreement)


def test_references_are_the_same_however_they_are_packed(tmp_path: Path) -> None:
    a = tiny()
    weights = random_weights(a)
    reference = exact(a, weights)
    from stages.export.cases import sweep

    shapes = set()

    def counted(ids: np.ndarray, mask: np.ndarray, positions: np.ndarray) -> np.ndarray:
        shapes.add(ids.shape[1])
        assert len(ids) <= 16
        return reference(ids, mask, positions)

    cases = sweep(a.vocab_size, 40, 0)
    found = list(with_references(cases, counted, a.vocab_size))
    assert {id(case) for case, _ in found} == {id(case) for case in cases}
    assert shapes == {32, 40}
    for case, logits in found[::7]:
        alone = reference(case.ids_BT, case.mask_BT, case.positions_BT)
        assert np.abs(logits - alone)[case.mask_BT].max() < 1e-12


def test_the_report_names_every_failure(tmp_path: Path) -> None:
    good = CaseResult("whole 1x(0+3)", "whole", 1, 0, 3, 3, 1e-6, 1.0, 1e-6, None)
    bad = CaseResult("past 2x(4+1)", "past", 2, 4, 1, 2, 0.5, 1.0, 0.5, "error 0.5")
    broken = CaseResult("past 2x(5+1)", "past", 2, 5, 1, 2, None, None, None, "cannot be reshaped")
    agreement = Agreement(1e-5, 8, [], [good, bad, broken])
    text = table(agreement)
    assert "Not proved: 3 cases" in text
    assert "| past | 2 | 4 | 5.0e-01 | 5.0e-01 | 2 |" in text
    assert "- past 2x(5+1): cannot be reshaped" in text
    assert agreement.to_json()["passed"] is False
    assert agreement.max_scaled == 0.5
    picture(agreement, tmp_path / "one.png")
    picture(agreement, tmp_path / "other.png")
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "other.png").read_bytes()
    require(Agreement(1e-5, 8, [], [good]))


def test_no_dot_lies_under_the_pictures_legend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    kinds = ("whole", "past", "padded", "spread positions")
    cases = [CaseResult(kind, kind, 1, 0, 3, 3, 1e-8, 1.0, 1e-8, None) for kind in kinds]
    picture(Agreement(1e-5, 8, [], cases), tmp_path / "one.png")
    drawn[0].draw_without_rendering()
    (legend,), (axes,) = drawn[0].legends, drawn[0].axes
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())


def test_a_prompt_in_pieces_fails_on_what_is_no_number(tmp_path: Path) -> None:
    a = tiny(layers=1)
    write_tiny_bundle(tmp_path, a)
    engine = lane("onnxruntime", "plain", OnnxModel(tmp_path / "bundle", threads=1)).engine
    assert pieces_check(engine, a.vocab_size, 12, 0, 1e-5).problem is None
    honest = engine.forward

    def spoilt(ids: Any, mask: Any, positions: Any, past: Any) -> Any:
        logits, present = honest(ids, mask, positions, past)
        return logits * (1 if past is None else np.nan), present

    engine.forward = spoilt  # type: ignore[method-assign]
    found = pieces_check(engine, a.vocab_size, 12, 0, 1e-5)
    assert found.problem == "numbers that are not finite"
