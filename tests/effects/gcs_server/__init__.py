"""A strict stand-in for the JSON interface of Cloud Storage, in memory: preconditions hold on every verb."""

from tests.effects.gcs_server.bucket import Bucket, Object, Precondition, Refused
from tests.effects.gcs_server.server import Fault, GcsServer

__all__ = ["Bucket", "Fault", "GcsServer", "Object", "Precondition", "Refused"]
