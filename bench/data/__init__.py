"""The messages that drivers publish and compress: flights and weather, corpora, files of one message a line."""
