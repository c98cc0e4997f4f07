"""One run: objects built in order, trained by Lightning, recorded."""
