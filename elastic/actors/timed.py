"""Effect. A policy of a user's, held to a time: one that hangs decides nothing any more, and the run goes on."""

import ctypes
import logging
import threading
from concurrent.futures import Future, wait

from elastic.control.remediation import ClusterView, Policy, Remediation
from elastic.control.values import Incident
from elastic.policies.guarded import decided_instead, own_name

log = logging.getLogger("elastic")

# The run stands still meanwhile. Half of what the driver waits for a supervisor that may be out of its reach.
ANSWER_S = 2.0
_LOOKS = 20


class Timed:
    """Ask a policy in a thread of its own; once it has not answered in time, the built-in ladder decides for good.

    The controller waits for the policy, and the run for the controller.

    Args:
        policy: that may hang.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy, self._fault = policy, ""

    def __call__(self, incident: Incident, view: ClusterView) -> Remediation:
        if not self._fault:
            answer: Future[Remediation] = Future()
            arguments = (answer, self._policy, incident, view)
            thread = threading.Thread(target=_answer, args=arguments, name="elastic-policy", daemon=True)
            thread.start()
            for _ in range(_LOOKS):  # so that a stop of this whole process counts as one look, however long it was
                if wait([answer], ANSWER_S / _LOOKS).done:
                    return answer.result()
            _end(thread)
            self._fault = f"the policy {own_name(self._policy)} did not answer within {ANSWER_S:g} s"
            log.warning("%s: it is not asked again, and the built-in ladder decides in its place", self._fault)
        return decided_instead(self._fault, incident, view)


def _answer(answer: Future[Remediation], policy: Policy, incident: Incident, view: ClusterView) -> None:
    try:
        answer.set_result(policy(incident, view))
    except BaseException as error:  # whoever asked is in another thread
        if not answer.done():  # else it was ended just after its answer
            answer.set_exception(error)


def _end(thread: threading.Thread) -> None:
    """At its next line of Python: a loop would take this process the processor, while a sleep costs nothing."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
