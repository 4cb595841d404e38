"""Services without one of their guards: the tests of the tests. See catalogue.py."""
