"""Delivery of images to the engines that run them. Knows engines, hosts and registries, and no provider.

The entry point is `deliver` in `deliver.py`:

    delivered = deliver(image, cluster, ImageTarget(engine=find_engine()), report)
    delivered = deliver(image, cluster, ImageTarget(engine=find_engine(), machines=machines), report)
    delivered = deliver(image, cluster, ImageTarget(engine=find_engine(), registry="registry.example.com/team"), report)

The first image is built on the engine that runs it. The second one is sent to machines, or pulled by them with
`registry=`. The third one is pulled by whatever runs it, such as a swarm, from `delivered.reference`.

Read `deliver.py` first (the order of the steps; find the image in a registry, else build and push it), then `stream.py`
(send it to machines, have them pull it, or pass it on to each other). `checks.py` says how much room an image takes on
a machine, and when a signature can be verified.
"""
