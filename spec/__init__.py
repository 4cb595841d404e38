"""Models of the ownership protocol, searched exhaustively; see README.md."""
