"""`tenure`, and `python -m tenure.cli`."""

from tenure.runtime.importing import imports_kept

with imports_kept():
    from tenure.cli.main import main

if __name__ == "__main__":
    main()
