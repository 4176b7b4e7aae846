"""What an answer value says: numbers, ranges, units, one spelling for what is equal."""
