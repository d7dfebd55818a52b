"""Finds out whether and how a module call may be split, by trying it and leaving no trace."""
