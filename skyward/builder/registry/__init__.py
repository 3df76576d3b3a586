"""Image registries, as an engine reaches them: find an image, push it; and this user's logins.

    reference = find(tag, target, images, report)      # "repository@sha256:...", or None
    reference = push(tag, target, engine=images, report=report)
    reference = push_zstd(tag, target, report=report, docker_host=url)      # its layers unpack faster
    cache = shared_cache(target, platform, images)      # for `ensure`: layers pushed by others

`target` is a reference, such as `registry.example.com/team/skyward:sky-1-0123456789abcdef`; `with_tag(repository, tag)`
adds a tag. Read `reference.py`, `auth.py` (logins), then `pushing.py`.
"""
