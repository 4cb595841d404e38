"""Generated from protos/tenure/v1 by `make protos`. Never edited."""
