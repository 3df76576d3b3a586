"""Which package indexes this machine serves from elsewhere: the map that builds take from SKYWARD_INDEXES."""

import json
import os
from pathlib import Path

from .console import SetupError

TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
_TORCH_CPU_WHEEL = "torch-*+cpu-*.whl"


def index_map() -> dict[str, str]:
    """The map of index address to mirror or folder: what the user set, and PyTorch's if pip's variables name a folder.

    Raises:
        SetupError: SKYWARD_INDEXES is not such a map.
    """
    text = os.environ.get("SKYWARD_INDEXES", "")
    try:
        given = dict(json.loads(text or "{}"))
    except (TypeError, ValueError) as error:
        raise SetupError(
            f"SKYWARD_INDEXES is {text!r}, which is no JSON object of index address to mirror or folder, such as "
            '{"https://download.pytorch.org/whl/cpu": "/srv/wheels"}. Correct or unset it.'
        ) from error
    folders = (folder for folder in map(Path, _find_links()) if folder.is_absolute() and folder.is_dir())
    torch = next((str(folder) for folder in folders if any(folder.glob(_TORCH_CPU_WHEEL))), None)
    return {**({TORCH_CPU_INDEX: torch} if torch else {}), **given}


def _find_links() -> list[str]:
    given = f"{os.environ.get('PIP_FIND_LINKS', '')} {os.environ.get('UV_FIND_LINKS', '').replace(',', ' ')}"
    return [word.removeprefix("file://") for word in given.split()]
