"""What is played on: a window of a listing, the moves that are legal in it, what the player sees of it."""
