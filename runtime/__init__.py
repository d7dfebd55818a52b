"""What runs inside the training process; the only folder that imports torch."""
