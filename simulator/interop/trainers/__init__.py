"""Plans in the files of training frameworks, read and, where a format can say them, written."""
