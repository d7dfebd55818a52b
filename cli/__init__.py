"""The `xl` command: one file a command; each parses, calls and prints."""
