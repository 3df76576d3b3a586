"""Image registries: check whether they have an image, push it. Only a push needs an engine.

    found = existence.check(target, platform="linux/amd64")      # Exists(digest, reference) | Absent() | Unknown(...)
    pushed = push(tag, target, platform=..., engine=images, report=report)      # Pushed(reference="name@sha256:...")
    found = push_zstd(tag, target, platform=..., report=report, docker_host=url)      # Exists; layers unpack faster
    cache = shared_cache(target, platform, is_whole=...)      # for `ensure`: layers pushed by others

`target` is a reference, such as `registry.example.com/team/skyward:sky-1-0123456789abcdef`; `with_tag(repository, tag)`
adds a tag. Loopback addresses, and references that begin with `http://`, use plain http.

Read `reference.py`, then `client.py` (the API, with its tokens) with `auth.py` (credentials) and `http.py`
(certificates, redirects, silent transfers). `existence.py`, `pushing.py` and `attachments.py` build on these.
"""
