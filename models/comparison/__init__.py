"""Compare selections: at many weights of quality, and where more of one costs much of the other."""
