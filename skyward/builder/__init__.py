"""Building images: from a description to an image on an engine.

    plan = plan_for(image, store, python="3.11", platform="linux/amd64")   # resolves the base, may pull it
    facts = ensure(plan, store, report)                                    # builds unless the engine has it

`store` is an `EngineImages` (`store.py`); `report` is called with an `Event` for each thing that happens. `ensure`
starts no process if the engine has the image. Ctrl-C ends a build with all its processes.

Read `plans.py` first, which uses these in this order: `files` and `packages` (the content), `base.py` (the base),
`site` (indexes and certificates of this machine), `docker` (the build), `registry`.
`sources` reads declarations. `store.py` also knows the content recorded for each tag; `explain.py` serves
the command line.
"""
