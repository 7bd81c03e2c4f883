"""What a broker's clients may do: the rules as they are now, and answers remembered."""
