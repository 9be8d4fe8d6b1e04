"""The lifecycle from Python; tests/peers has it in a Jupyter kernel."""

import pytest

from artifacts.errors import BadInput
from flows.notebook import run
from tests.command import ROOT


def test_from_python(tmp_path, capsys):
    store = tmp_path / "store"
    outcomes = run(ROOT / "configs" / "tiny.yaml", to="corpus", store=store)
    assert list(outcomes) == ["corpus"]
    assert outcomes["corpus"].path.is_relative_to(store)
    assert "corpus " in capsys.readouterr().out
    again = run(ROOT / "configs" / "tiny.yaml", to="corpus", store=store)
    assert again["corpus"].skipped
    with pytest.raises(BadInput, match=r"pretrain\.steps: is 0"):
        run(ROOT / "configs" / "tiny.yaml", overrides=["pretrain.steps=0"], store=store)
