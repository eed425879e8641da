"""Values as text that every Python writes alike."""

import pytest

from elastic.control import commands as cmd
from elastic.control import events as ev
from elastic.control.flight import Flying
from elastic.control.values import Rung
from elastic.sim.telling import text_of


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.1 + 0.2, "0.30000000000000004"),
        (("a", 1, None, True, [2.5]), "['a',1,None,True,[2.5]]"),
        (frozenset({"b", "a"}), "{'a','b'}"),
        ({"b": (1,), "a": {2}}, "{'b':[1],'a':{2}}"),
        (Flying.FORMING, "Flying.FORMING"),
        (Rung.DURABLE, "Rung.DURABLE"),
        (ev.Tick(), "Tick()"),
        (ev.MonitorLost(node="a"), "MonitorLost('a')"),
        (cmd.Pause(worker="w0", generation=1, reason="so"), "Pause('so','w0',1,0.0)"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_value_has_one_text(value, text):
    assert text_of(value) == text_of(value) == text


def test_what_has_no_such_text_is_refused():
    with pytest.raises(TypeError, match="object has no text"):
        text_of(object())
