"""What all pages have in common: their frame, their looks, and the little that they do by themselves."""
