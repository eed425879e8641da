"""How a benchmark's call is told to those who want to repeat it."""

from benchmarks.provenance import command


def test_a_command_is_told_as_one_types_it_elsewhere() -> None:
    called = [
        "/somewhere/.venv/bin/python3",
        "-m",
        "benchmarks.simulator",
        "--out",
        "/somewhere/else/a name.json",
        "-n",
        "3",
    ]
    assert command(called) == "python -m benchmarks.simulator --out 'a name.json' -n 3"
