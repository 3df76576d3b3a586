"""Which entry points run the command that they are given."""

from __future__ import annotations

import pytest

from skyward.builder.bases.inspection import runs_commands

NVIDIA = '#!/bin/bash\nset -eo pipefail\nif [[ $# -eq 0 ]]; then\n  exec "/bin/bash"\nelse\n  exec "$@"\nfi\n'
SCRIPTS = {
    "/entrypoint.sh": '#!/bin/sh\nset -e\nexport A=1\nexec "$@"\n',
    "/nvidia.sh": NVIDIA,
    "/gosu.sh": '#!/bin/bash\nif [ "$(id -u)" = 0 ]; then exec gosu app "$@"; fi\nexec "$@"\n',
    "/only-gosu.sh": '#!/bin/bash\nexec gosu app "$@"\n',
    "/tini.sh": '#!/bin/sh\nexec /usr/bin/tini -g -- "$@"\n',
    "/inline.sh": '#!/bin/sh\ncd /app && "$@"\n',
    "/server.sh": '#!/bin/sh\nexec /app/server --listen "$@"\n',
    "/ends.sh": "#!/bin/sh\necho done\n",
    "/comment.sh": '#!/bin/sh\n# exec "$@" was here\nexec server\n',
    "/no-shebang.sh": 'exec "$@"\n',
    "entry": '#!/bin/sh\nexec "$@"\n',
    "/bin/server": '\x7fELF exec "$@"\n',
}


@pytest.mark.parametrize(
    ("entrypoint", "runs"),
    [
        ([], True),
        (["tini", "--"], True),
        (["/usr/bin/tini", "-g", "-p", "SIGTERM", "--", "/entrypoint.sh"], True),
        (["tini", "--", "python", "app.py"], False),
        (["/usr/bin/dumb-init", "--rewrite", "15:2", "--"], True),
        (["/usr/bin/env", "A=1", "-u", "B"], True),
        (["env", "A=1", "python", "app.py"], False),
        (["gosu", "app"], True),
        (["conda", "run", "--no-capture-output", "-n", "env"], True),
        (["conda", "run", "-n", "env", "python", "app.py"], False),
        (["/entrypoint.sh"], True),
        (["/nvidia.sh"], True),
        (["/gosu.sh"], True),
        (["/only-gosu.sh"], True),
        (["/tini.sh"], True),
        (["/inline.sh"], True),
        (["entry"], True),
        (["/server.sh"], False),
        (["/ends.sh"], False),
        (["/comment.sh"], False),
        (["/no-shebang.sh"], False),
        (["sh", "/no-shebang.sh"], True),
        (["bash", "-e", "/entrypoint.sh"], True),
        (["bash"], False),
        (["/bin/sh", "-c", "echo done"], False),
        (["/bin/sh", "-c", 'exec "$@"'], False),
        (["/bin/sh", "-c", '. /env.sh; exec "$@"', "--"], True),
        (["python", "-m", "app"], False),
        (["/bin/server"], False),
        (["/nowhere"], False),
    ],
)
def test_entry_points(entrypoint: list[str], runs: bool) -> None:
    """An init, `env`, and scripts that end in their arguments do; programs of their own do not."""

    def read(program: str) -> bytes | None:
        text = SCRIPTS.get(program)
        return None if text is None else text.encode()

    assert runs_commands(entrypoint, read) is runs
