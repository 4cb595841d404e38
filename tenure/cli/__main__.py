"""Runs the command as `tenure` and as `python -m tenure.cli`."""

from tenure.runtime.fast_start import imports_kept

with imports_kept():
    from tenure.cli.main import main

if __name__ == "__main__":
    main()
