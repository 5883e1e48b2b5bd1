"""What a call of an exported kernel costs a user: of its own shape, and of fewer rows than that."""
