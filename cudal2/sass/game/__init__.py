"""The game itself: a window of a listing, the legal moves in it, and the player's observations."""
