"""Pure. What has changed from one state of a run to the next: all that whoever keeps a copy has to be told."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from elastic.control.copies import changed
from elastic.control.persistent import persistent
from elastic.control.state import RunState

_BY_ENTRY = ("workers", "heard_s", "readings")
_WHOLE = tuple(field.name for field in fields(RunState) if field.name not in (*_BY_ENTRY, "tally"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateChange:
    """From one state to a later one.

    Attributes:
        fields: new values, by the name of the field.
        entries: of fields that are large mappings: what is new in them, or has another value; gone: keys they lack now.
    """

    fields: Mapping[str, Any]
    entries: Mapping[str, Mapping[str, Any]]
    gone: Mapping[str, tuple[str, ...]]

    def applied_to(self, state: RunState) -> RunState:
        """The later state, from the earlier one."""
        new = dict(self.fields)
        for name in self.entries.keys() | self.gone.keys():
            left = persistent(getattr(state, name)).without(self.gone.get(name, ()))
            new[name] = left.updated(self.entries.get(name, {}))
        return changed(state, **new, tally=None)


def change_between(before: RunState, after: RunState) -> StateChange:
    """See `StateChange`; what both share is not compared."""
    entries, gone = {}, {}
    for name in _BY_ENTRY:
        now, then = persistent(getattr(after, name)), persistent(getattr(before, name))
        if now is not then:
            entries[name], gone[name] = now.changes_since(then)
    new = {name: value for name in _WHOLE if (value := getattr(after, name)) is not getattr(before, name)}
    return StateChange(
        fields=new,
        entries={name: one for name, one in entries.items() if one},
        gone={name: one for name, one in gone.items() if one},
    )
