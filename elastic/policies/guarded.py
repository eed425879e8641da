"""Pure. A policy of a user's, held to its word: what it answers is checked, and where it fails another one decides."""

import inspect
from dataclasses import dataclass, replace
from typing import Any

from elastic.control.remediation import ClusterView, Kind, Policy, Remediation
from elastic.control.values import Incident
from elastic.errors import SettingError
from elastic.policies.ladder import Ladder

_SAID = " (the policy"  # so begins what is said of it
_LADDER = Ladder()


@dataclass(frozen=True, slots=True)
class Guarded:
    """Ask a policy; where it raises, or answers what is no remediation, ask another one and say so in the reason.

    A fault in a policy shows in the middle of a failure, when nobody is there to mend it: the run goes on.

    Attributes:
        policy: that may fail. otherwise: that does not.
    """

    policy: Policy
    otherwise: Policy = _LADDER

    def __call__(self, incident: Incident, view: ClusterView) -> Remediation:
        try:
            answer = self.policy(incident, view)
            fault = fault_in(answer)
        except (Exception, SystemExit) as error:  # whatever it is, the incident must be decided
            fault = f"the policy raised {type(error).__name__}: {error}"
        return decided_instead(fault, incident, view, self.otherwise) if fault else answer


def decided_instead(fault: str, incident: Incident, view: ClusterView, otherwise: Policy = _LADDER) -> Remediation:
    """What another policy decides, since the one that was asked has failed: the reason tells of it."""
    instead = otherwise(incident, view)
    return replace(instead, reason=f"{instead.reason} ({fault})")


def own_name(policy: Policy) -> str:
    """As its author would call it."""
    own = policy.policy if isinstance(policy, Guarded) else policy
    return getattr(own, "__qualname__", type(own).__name__)


def told_fault(reason: str) -> str:
    """What was wrong with a policy's own answer, as the reason of the one that was asked instead says; else empty."""
    _, mark, rest = reason.removesuffix(")").rpartition(_SAID)
    return f"the policy{rest}" if mark and reason.endswith(")") else ""


def fault_in(answer: Any) -> str:
    """Why this is no remediation; empty if it is one."""
    if not isinstance(answer, Remediation) or not isinstance(answer.kind, Kind):
        return f"the policy answered {answer!r:.80}, which is no Remediation"
    if not isinstance(answer.reason, str) or not answer.reason:
        return "the policy gave no reason"
    if not isinstance(answer.targets, tuple) or not all(isinstance(name, str) for name in answer.targets):
        return f"the policy's targets {answer.targets!r:.80} are no tuple of names"
    if answer.for_s is not None and not (isinstance(answer.for_s, int | float) and answer.for_s >= 0):
        return f"the policy's for_s={answer.for_s!r:.80} is no number of seconds"
    return ""


def policy_of(given: Any) -> Policy:
    """A function, an object with `event_policy`, or a class of either, as a policy; None: the default ladder.

    Raises:
        SettingError: it is none of these.
    """
    if given is None:
        return Ladder()
    if inspect.isclass(given):
        try:
            given = given()
        except TypeError as error:
            raise SettingError(f"the policy class {given.__name__} must be made without arguments: {error}") from error
    if isinstance(given, Ladder | Guarded):
        return given
    act = getattr(given, "event_policy", given)
    if not callable(act):
        raise SettingError(f"policy={given!r:.80} must be a function (incident, view), or have a method event_policy")
    return Guarded(act)
