"""A member stops before the driver may take it for gone, on clocks that do not run alike."""

from elastic.control.worker_protocol import LEASE_MARGIN, has_lease

DRIFT = 0.1


def test_a_member_stops_a_margin_before_its_lease_is_over():
    assert has_lease(0.0, 10.0) and has_lease(7.9, 10.0)
    assert not has_lease(8.0, 10.0) and not has_lease(100.0, 10.0)


def test_the_margin_allows_for_clocks_that_drift():
    """The member's clock may be slow and the driver's fast by as much: its last apply is over in time."""
    stopped_s = 10.0 * LEASE_MARGIN / (1 - DRIFT)
    assert stopped_s < 10.0 / (1 + DRIFT)
