"""How pages are checked and written; what they say stands in `pages`, `families`, `documents`."""
