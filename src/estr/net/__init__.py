"""What servers are called by, and what they answer, within bounds."""
