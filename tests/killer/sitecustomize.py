"""Kills the process it is in, at one exact call: for tests whose processes start others.

Python imports this by its name if it stands on PYTHONPATH. TEST_KILL is "RANK CALL WHERE ...": that
rank dies at that call (counted from 1) of any of these, each being MODULE:OBJECT.FUNCTION.
"""

import importlib
import os
import signal
from typing import Any


def _dying(function: Any, calls: list[int], last: int) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    return call


_rank, _last, *_places = os.environ.get("TEST_KILL", "- 0").split()
if os.environ.get("MS_NODE_ID") == _rank and os.environ.get("MS_ROLE") == "MS_WORKER":
    from stages.engine import runtime

    assert runtime  # it comes before MindSpore
    _calls = [0]
    for _place in _places:
        _module, _, _path = _place.partition(":")
        _owner: Any = importlib.import_module(_module)
        *_outer, _name = _path.split(".")
        for _one in _outer:
            _owner = getattr(_owner, _one)
        setattr(_owner, _name, _dying(getattr(_owner, _name), _calls, int(_last)))
