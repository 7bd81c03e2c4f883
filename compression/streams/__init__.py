"""Topic streams: one stream of frames a topic, from a broker to its subscribers."""
