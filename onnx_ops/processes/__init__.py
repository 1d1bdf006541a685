"""Tasks in other processes, and the files of custom operators that these import."""
