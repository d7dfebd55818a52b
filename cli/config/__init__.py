"""`xl config`: one file for each sub-command."""
