"""The assembly game on one kernel, from what the user names to the faster edit: `cudal2 sass`."""
