"""Where the numbers of a run go: the terminal, files, and the trackers people use; and the plots made from them."""
