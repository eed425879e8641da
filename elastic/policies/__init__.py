"""Pure. Policies: plain functions `(incident, view) -> Remediation`; replace them by your own."""

from elastic.control.remediation import ClusterView, Kind, Policy, Remediation
from elastic.policies.ladder import Ladder

__all__ = ["ClusterView", "Kind", "Ladder", "Policy", "Remediation"]
