"""Effect. Whether the kernel can delay and lose packets, asked of itself: what our code says of it is held to that."""

import subprocess


def has_netem(host: str) -> bool:
    """Puts the plainest discipline of that kind on a namespace's loopback, and takes it away."""
    command = ["tc", "-n", host, "qdisc", "add", "dev", "lo", "root", "netem"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    if done.returncode == 0:
        subprocess.run(["tc", "-n", host, "qdisc", "del", "dev", "lo", "root"], check=True, timeout=20)
        return True
    assert "qdisc kind is unknown" in done.stderr or "RTNETLINK answers: No such file" in done.stderr, done.stderr
    return False
