"""Tools a policy may call, the Hermes call format, and the dialogue around them."""
