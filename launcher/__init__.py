"""Planning and running launches; nothing in here imports torch."""
