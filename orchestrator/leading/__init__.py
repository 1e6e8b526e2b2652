"""What a head's loop is made of: leading, beginning and ending attempts, and what is done beside it."""
