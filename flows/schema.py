"""The JSON schema of a run's config, for editors: configs/schema.json."""

import json
from pathlib import Path
from typing import Any

SCHEMA_FILE = Path("configs/schema.json")


def run_schema() -> dict[str, Any]:
    """The schema of one run's YAML file."""
    from flows.lifecycle import RunConfig

    schema = RunConfig.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def schema_text() -> str:
    """The schema file's text."""
    return json.dumps(run_schema(), indent=1, ensure_ascii=False) + "\n"
