"""The page of a report: its text, its looks, and the little that it does by itself."""
