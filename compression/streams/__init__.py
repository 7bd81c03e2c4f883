"""Messages of a topic compressed together: topic streams from a broker to its subscribers, batches from a publisher."""
