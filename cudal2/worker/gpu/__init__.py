"""What a referee of any GPU does, whoever made it: operands in its memory, their history, and what became of them."""
