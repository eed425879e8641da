"""Pure. Policies: plain functions `(incident, view) -> Remediation`; replace them by your own."""

from elastic.control.remediation import ClusterView, Kind, Policy, Remediation
from elastic.control.values import Incident, IncidentClass
from elastic.control.xid import Severity
from elastic.policies.cost_aware import CostAware, Guess
from elastic.policies.exit_on_notice import ExitOnNotice
from elastic.policies.guarded import policy_of
from elastic.policies.hot_swap import HotSwapFirst
from elastic.policies.ladder import Ladder
from elastic.policies.shrink_first import ShrinkFirst

__all__ = [
    "ClusterView",
    "CostAware",
    "ExitOnNotice",
    "Guess",
    "HotSwapFirst",
    "Incident",
    "IncidentClass",
    "Kind",
    "Ladder",
    "Policy",
    "Remediation",
    "Severity",
    "ShrinkFirst",
    "policy_of",
]
