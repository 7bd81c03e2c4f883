"""Who is where and in which order: positions, groups, blocks, topics, messages between actors, configuration."""
