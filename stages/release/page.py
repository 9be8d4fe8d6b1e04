"""RELEASE.md: the page people read."""

from typing import Any

LOAD = """\
```python
# onnxruntime alone
import onnxruntime
session = onnxruntime.InferenceSession("{graph}")

# onnxruntime-genai
import onnxruntime_genai
model = onnxruntime_genai.Model("{bundle}")
tokenizer = onnxruntime_genai.Tokenizer(model)

# transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
model = AutoModelForCausalLM.from_pretrained("{model}")
tokenizer = AutoTokenizer.from_pretrained("{model}")
```"""


def page(release: dict[str, Any], model: str, bundle: str, graph: str) -> str:
    """The page of a release; `model`, `bundle` and its `graph` are paths as seen from its
    directory."""
    a, agreement = release["architecture"], release["agreement"]
    lines = [
        "# Release",
        "",
        f"A {a['family']} model of {release['parameters']:,} parameters: {a['layers']} layers, "
        f"hidden size {a['hidden_size']}, vocabulary {a['vocab_size']:,}, "
        f"up to {a['max_positions']} tokens. "
        f"Licence: {release['licence'] or 'not stated'}.",
        "",
        "Approved by the gate, and so is the ONNX bundle: it was made from exactly the model that "
        f"was scored, with weights in {agreement['precision']}, and scored itself.",
        "",
        "## Scores",
        "",
        "Shares of right answers, ± standard error. Chance is what guessing gives.",
        "",
        "| task | items | micro | macro | bundle, micro | chance |",
        "|---|---|---|---|---|---|",
    ]
    for name, score in release["scores"].items():
        bundled = release["bundle_scores"][name]
        lines.append(
            f"| {name} | {score['items']:,} | {_share(score['micro'], score['micro_stderr'])} "
            f"| {_share(score['macro'], score['macro_stderr'])} "
            f"| {_share(bundled['micro'], bundled['micro_stderr'])} | {score['chance']:.1%} |"
        )
    lines += [
        "",
        "## Gate",
        "",
        *_rules(release["gate"]),
        "",
        "The bundle beside the model:",
        "",
        *_rules(release["gate_bundle"]),
        "",
        "## Agreement",
        "",
        f"ONNX in onnxruntime against MindSpore: {agreement['cases']} cases up to "
        f"{agreement['longest']} tokens, weights in {agreement['precision']}, "
        f"largest error {agreement['max_scaled']:.1e} "
        f"(allowed {agreement['threshold']:.0e}) at logits of order 1.",
        "",
        "## Use",
        "",
        "Paths as seen from this page's directory.",
        "",
        LOAD.format(model=model, bundle=bundle, graph=graph),
        "",
        "## Made from",
        "",
        "| part | kind | identity | digest |",
        "|---|---|---|---|",
        *(
            f"| {role} | {entry['kind']} | `{entry['identity'][:16]}` | `{entry['digest']}` |"
            for role, entry in release["artifacts"].items()
        ),
        "",
        "Packages: "
        + ", ".join(f"{name} {version}" for name, version in release["packages"].items())
        + ".",
    ]
    return "\n".join(lines) + "\n"


def _rules(rules: list[dict[str, Any]]) -> list[str]:
    return [
        "| rule | task | passed | why |",
        "|---|---|---|---|",
        *(
            f"| {rule['rule']} | {rule['task']} | {'yes' if rule['passed'] else 'no'} "
            f"| {_cell(rule['reason'])} |"
            for rule in rules
        ),
    ]


def _share(value: float, error: float | None) -> str:
    return f"{value:.1%}" if error is None else f"{value:.1%} ± {error:.1%}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
