"""Delivery of images to the engines that run them. It depends on engines, hosts and registries, not on providers.

The entry point is `deliver` in `deliver.py`:

    delivered = deliver(image, cluster, ImageTarget(engine=find_engine()), report)
    delivered = deliver(image, cluster, ImageTarget(engine=find_engine(), machines=machines), report)
    delivered = deliver(image, cluster, ImageTarget(engine=find_engine(), registry="registry.example.com/team"), report)

The first image is built on the engine that runs it. The second one is sent to machines, or pulled by them with
`registry=`. The third one is pulled from `delivered.reference` by whatever runs it.

`checks.py` determines the disk space of an image on a machine.
"""
