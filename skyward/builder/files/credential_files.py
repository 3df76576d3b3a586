"""Detection of files that usually hold passwords, keys or tokens, by name and, for small files, by content."""

from __future__ import annotations

import re
from pathlib import Path

_LARGEST = 256 * 1024  # bytes; a file of credentials is smaller

# below these folders every file counts
_FOLDERS = {
    "/.ssh/": "a file of SSH",
    "/.aws/": "a file of the AWS settings",
    "/.gnupg/": "a file of GnuPG",
    "/.kube/": "a file of the Kubernetes settings",
    "/.azure/": "a file of the Azure settings",
    "/.config/gcloud/": "a file of the Google Cloud settings",
    "/.docker/config.json": "logins of registries",
}
_NAMES = (
    (r"\.env(\..+)?|.+\.env|\.envrc", "environment variables, often with passwords"),
    (r"id_(rsa|dsa|ecdsa|ed25519)(_sk)?(\..+)?", "a private key"),
    (r".+\.(key|ppk|p8|p12|pfx|jks|keystore)", "a private key"),
    (r".+\.kdbx", "a store of passwords"),
    (r"[._]netrc|\.git-credentials|\.pypirc|\.pgpass|\.my\.cnf|\.htpasswd", "logins"),
    (r"\.dockercfg|\.dockerconfigjson", "logins of registries"),
    (r"kubeconfig(\..+)?|.+\.kubeconfig", "access to a Kubernetes cluster"),
    (r"\.boto|\.s3cfg|\.databrickscfg|\.vault-token|kaggle\.json", "access to a service"),
    (r"(secrets?|credentials?)(\.(toml|ya?ml|json|ini|csv|txt))?", "credentials"),
    (r".+\.tfstate(\..+)?", "a Terraform state, often with passwords"),
)
_ANY_NAME = re.compile("|".join(f"(?:{pattern})" for pattern, _ in _NAMES), re.DOTALL)
_HARMLESS = re.compile(r".+\.(pub|pyi?|example|sample|template|tmpl|dist)|(example|sample|template)\.env", re.DOTALL)

# names that say nothing by themselves: a setting without a token is harmless
_SETTINGS = re.compile(r"\.npmrc|\.yarnrc(\.yml)?|\.?pip\.(conf|ini)|uv\.toml|\.condarc|\.git/config")
_TOKEN = re.compile(
    rb"(?i)_(authtoken|auth|password)[\"']?\s*[=:]\s*[\"']?(?!\$\{)[^\s\"']|://[^/\s:@]+:(?!\$\{)[^/\s@]+@"
)

_SOURCE = {".py", ".pyi", ".pyx", ".ipynb", ".md", ".rst"}  # examples of keys stand in code and documents
# a word that is quick to look for, patterns that must all be there besides, and what that is
_CONTENTS = (
    (b"PRIVATE KEY", (rb"^\s*-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY( BLOCK)?-----",), "a private key"),
    (b"PuTTY", (rb"\APuTTY-User-Key-File-",), "a private key"),
    (b"service_account", (rb'"type"\s*:\s*"service_account"', rb'"private_key"'), "a Google service account"),
    (b"client_secret", (rb'"client_secret"\s*:\s*"[^"]', rb'"client_id"'), "credentials of a client"),
    (b"Config", (rb"^[\"']?kind[\"']?:\s*[\"']?Config\b", rb"^[\"']?users[\"']?:"), "access to a Kubernetes cluster"),
    (b"aws_secret", (rb"^\s*aws_secret_access_key\s*=\s*\S",), "access to AWS"),
)


def credential_kind(name: str, path: Path) -> str | None:
    """What kind of credentials a file seems to hold, as words for people; None for an ordinary file.

    Args:
        name: its path with `/` between the parts, as far as it tells something.
        path: where it is.

    Raises:
        OSError: it cannot be read.
    """
    lowered = f"/{name}".lower()
    for folder, kind in _FOLDERS.items():
        if folder in lowered or lowered.endswith(folder):
            return kind
    last = lowered.rpartition("/")[2]
    if _ANY_NAME.fullmatch(last) and not _HARMLESS.fullmatch(last):
        return next(kind for pattern, kind in _NAMES if re.fullmatch(pattern, last, re.DOTALL))
    return _by_content(lowered, last, path)


def _by_content(lowered: str, last: str, path: Path) -> str | None:
    is_setting = _SETTINGS.fullmatch(last) or lowered.endswith("/.git/config")
    if path.suffix.lower() in _SOURCE or path.stat().st_size > _LARGEST:
        return None
    content = path.read_bytes()
    if is_setting and _TOKEN.search(content):
        return "settings with a password or token"
    if b"\0" in content[:1024]:
        return None
    for word, patterns, kind in _CONTENTS:
        if word in content and all(re.search(pattern, content, re.MULTILINE) for pattern in patterns):
            return kind
    return None
