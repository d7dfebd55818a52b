"""One file for each way of starting the processes of a plan."""
