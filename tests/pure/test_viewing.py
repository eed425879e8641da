"""What a policy is shown is worked out when it looks, once, and is what was so when it was asked."""

import pickle

from elastic.control.remediation import ClusterView, Kind, Remediation
from elastic.control.values import Incident
from elastic.control.viewing import Lazy
from tests.pure.bare_controller import BareController


def test_a_lazy_mapping_is_made_once_and_only_if_somebody_looks():
    made: list[int] = []

    def make() -> dict[str, int]:
        made.append(1)
        return {"a": 1}

    lazy = Lazy(make)
    assert made == []
    assert lazy["a"] == 1 and lazy.get("b") is None and len(lazy) == 1 and "a" in lazy
    assert lazy == {"a": 1} and repr(lazy) == "{'a': 1}" and {**lazy} == {"a": 1}
    assert made == [1]


def test_it_is_sent_as_a_plain_mapping():
    sent = pickle.loads(pickle.dumps(Lazy(lambda: {"a": 1})))
    assert type(sent) is dict and sent == {"a": 1}


def test_a_view_that_is_looked_at_later_shows_what_was_so_when_it_was_given():
    seen: list[ClusterView] = []

    def policy(incident: Incident, view: ClusterView) -> Remediation:
        seen.append(view)
        return Remediation(kind=Kind.SHRINK, reason="so be it")

    ws = BareController((1, 3), policy=policy).run()
    ws.die("w1")
    ws.answer("w0", 3)
    ws.answer("w2", 3)
    ws.form()
    ws.stable(4)
    ws.die("w2")
    view = seen[0]
    assert view.nodes == {"w0": "node-w0", "w1": "node-w1", "w2": "node-w2"}
    assert view.slowness.keys() == {"w0", "w1", "w2"}
    assert view.node_slowness == {"node-w0": 1.0, "node-w1": 1.0, "node-w2": 1.0}
