"""Files on disk: whole or not there, one writer, typed when they are read back."""
