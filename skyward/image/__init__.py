"""The image compiler: an `Image` and what is known of its base become a `Plan`: Dockerfile text, layers, identity.

Pure: no clock, working directory, network, environment or file is read here; `skyward.build` does the rest.
"""

from skyward.image.plan import Layer, Plan

__all__ = ["Layer", "Plan"]
