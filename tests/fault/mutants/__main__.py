"""`python -m tests.fault.mutants SERVICE --mutation NAME` runs a service without that guard; `--list` prints all."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from tenure.runtime.fast_start import imports_kept
from tenure.serve import PROGRAMS
from tests.fault.mutants.catalogue import MUTATIONS, table
from tests.fault.mutants.loading import load_mutated


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.mutants", description=__doc__)
    parser.add_argument("service", nargs="?")
    parser.add_argument("--mutation", choices=sorted(MUTATIONS))
    parser.add_argument("--list", action="store_true", help="print what each mutation takes away, and who notices")
    given = parser.parse_args(arguments)
    if given.list:
        sys.stdout.write(table())
        return 0
    if given.service is None or given.mutation is None:
        parser.error("a service and a mutation are needed")
    mutation = MUTATIONS[given.mutation]
    if mutation.service != given.service:
        parser.error(f"{mutation.name} is a mutation of {mutation.service}")
    sys.argv[1:] = []  # the rest is the service's own command line
    with imports_kept():
        load_mutated(f"services.{given.service}.main", mutation.edits)
        program = import_module(PROGRAMS[given.service])
    code: int = program.main()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
