"""What is wanted: the profile, where each of its values came from, and the files it is read from."""
