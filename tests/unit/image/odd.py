"""Texts that quoting may get wrong: in a Dockerfile, a shell, JSON or TOML, and where one is within another."""

from __future__ import annotations

ODD = [
    *"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ \t\n\r\x01\x7f\x85\xa0\u2028\ufeff",
    *(
        "$HOME",
        "${X}",
        "$(id)",
        "`id`",
        "\\n",
        "\\\\",
        "<<X",
        "%s",
        "{{x}}",
        "--mount=type=x",
        "\x1b[0m",
        "é",
        "ü",
        "漢",
        "😀",
    ),
    *("a", "0", "\nRUN true", "\n# escape=`", "\r\n", "\n\n", "FROM x", "\\\n", "'\"'"),
]
