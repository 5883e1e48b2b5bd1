"""The best kernel of each shape, selected with one measurement and reported with another."""
