from skyward import errors as errors
from skyward import integrations as integrations
from skyward import plugins as plugins
from skyward import providers as providers
from skyward._compute import PendingCompute as PendingCompute
from skyward._compute import compute as compute
from skyward._compute import gather as gather
from skyward._pool.debug import debug as debug
from skyward._pool.decorator import pool as pool
from skyward._pool.pool import ComputePool as ComputePool
from skyward._version import __version__ as __version__
from skyward.model.image import Image as Image
from skyward.model.image import PipIndex as PipIndex
from skyward.model.instance import InstanceInfo as InstanceInfo
from skyward.model.spec import Accelerator as Accelerator
from skyward.model.spec import Cluster as Cluster
from skyward.model.spec import Nodes as Nodes
from skyward.model.spec import Volume as Volume
from skyward.model.spec import Worker as Worker
from skyward.plugins import Plugin as Plugin
from skyward.providers.aws.provider import AWS as AWS
from skyward.providers.compose import Compose as Compose
from skyward.providers.docker import Docker as Docker
from skyward.providers.gcp.provider import GCP as GCP
from skyward.providers.kubernetes.provider import Kubernetes as Kubernetes
from skyward.providers.local import Local as Local
from skyward.providers.slurm.provider import Slurm as Slurm
from skyward.providers.ssh import SSH as SSH
from skyward.runs.saved import output_folder as output_folder
from skyward.runs.saved import save as save
from skyward.runtime.active_pool import sky as sky
from skyward.runtime.checkpoint import checkpoint as checkpoint
from skyward.runtime.output import silent as silent
from skyward.runtime.output import stderr as stderr
from skyward.runtime.output import stdout as stdout
from skyward.runtime.ranks import instance_info as instance_info
from skyward.runtime.shard import shard as shard

__all__ = [
    "AWS",
    "GCP",
    "SSH",
    "Accelerator",
    "Cluster",
    "Compose",
    "ComputePool",
    "Docker",
    "Image",
    "InstanceInfo",
    "Kubernetes",
    "Local",
    "Nodes",
    "PendingCompute",
    "PipIndex",
    "Plugin",
    "Slurm",
    "Volume",
    "Worker",
    "__version__",
    "checkpoint",
    "compute",
    "debug",
    "errors",
    "gather",
    "instance_info",
    "integrations",
    "output_folder",
    "plugins",
    "pool",
    "providers",
    "save",
    "shard",
    "silent",
    "sky",
    "stderr",
    "stdout",
]
_HOMES: dict[str, str]
