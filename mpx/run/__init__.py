"""One run, one folder: what it is called, who may write there, and the record it leaves."""
